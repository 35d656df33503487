#!/bin/bash
# The Debian packages, of what has been built: they build, lintian has nothing to
# say, and what they hold runs.
#
# usage: deb_test.sh   in the tree's layout (runfiles)
set -euo pipefail

here=$PWD
work=${TEST_TMPDIR:-$(mktemp -d)}
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
export HOME=$work

mkdir -p "$work/build/rcsock"
cp -rL debian "$work/build/rcsock/"
cd "$work/build/rcsock"
chmod -R u+w .
RCSOCK_BUILT=$here dpkg-buildpackage -us -uc -b -d >../log 2>&1 || {
  tail -n 40 ../log
  fail "dpkg-buildpackage"
}
# What is left in debian/ holds BUILD files of its own.
for left in debian/*/ debian/.[a-z]*/; do
  left=${left%/}
  [[ -L $left || ! -d $left || $left == debian/source ]] || grep -qx "$left" "$here/.bazelignore" ||
    fail "$left is not in .bazelignore"
done
cd ..
lintian --allow-root --fail-on error,warning ./*.changes ||
  fail "lintian"

for deb in rcsock_*.deb librcsock0_*.deb librcsock-dev_*.deb; do
  dpkg-deb -x "$deb" root
done
root=$PWD/root
"$root/usr/bin/rcsock" run -- true || fail "the packaged program does not run"
libraries=$(echo "$root"/usr/lib/*-linux-gnu)
cc -std=c99 -I"$root/usr/include" -o consumer "$here/tests/install/consumer.c" \
  -L"$libraries" -lrcsock
[[ $(LD_LIBRARY_PATH=$libraries ./consumer) == hello ]] || fail "the packaged library"
echo "ok"
