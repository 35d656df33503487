#!/bin/bash
# The tarball of what has been built: it works wherever it is unpacked.
#
# usage: dist_test.sh   in the tree's layout (runfiles)
set -euo pipefail

here=$PWD
work=${TEST_TMPDIR:-$(mktemp -d)}
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
export HOME=$work

RCSOCK_BUILT=$here SOURCE_DATE_EPOCH=0 tools/dist "$work/one" >/dev/null
RCSOCK_BUILT=$here SOURCE_DATE_EPOCH=0 tools/dist "$work/two" >/dev/null
name=rcsock-$(<VERSION)-linux-x86_64
cmp "$work/one/$name.tar.gz" "$work/two/$name.tar.gz" || fail "two runs make two files"

mkdir "$work/unpacked here"
tar -C "$work/unpacked here" -xzf "$work/one/$name.tar.gz"
mv "$work/unpacked here/$name" "$work/there"
there=$work/there
grep -rlE '/opt/rcsock' "$there/lib" "$there/bin" --include='*.pc' --include='*.cmake' &&
  fail "a file names the folder that it was made in"
"$there/bin/rcsock" run -- grep -c "$there/lib/librcsock_preload.so" /proc/self/maps >/dev/null ||
  fail "rcsock run does not preload"
# shellcheck disable=SC2016
LD_PRELOAD="$there/"'$LIB/librcsock_preload.so' \
  grep -c "$there/lib.*/librcsock_preload.so" /proc/self/maps >/dev/null || fail "\$LIB"
[[ -s $there/share/man/man1/rcsock.1 ]] || fail "no man page"

flags=$(PKG_CONFIG_PATH=$there/lib/pkgconfig pkg-config --cflags --libs rcsock)
# shellcheck disable=SC2086
cc -std=c99 -o "$work/consumer" tests/install/consumer.c $flags -Wl,-rpath,"$there/lib"
[[ $("$work/consumer") == hello ]] || fail "a program that pkg-config has linked"

grep -q "^Version: *$(<VERSION)\$" "$work/one/rcsock.spec" || fail "the version in rcsock.spec"
if command -v rpmbuild >/dev/null; then
  rpmbuild -bb --define "_topdir $work/rpm" --define "_sourcedir $work/one" \
    "$work/one/rcsock.spec" >"$work/rpm.log" 2>&1 || {
    tail -n 20 "$work/rpm.log"
    fail "rpmbuild"
  }
else
  echo "SKIPPED: the package of rcsock.spec: there is no rpmbuild"
fi
echo "ok"
