#!/bin/bash
# The library exports what its symbols file says, no more and no less: a symbol
# that goes breaks programs, one that comes belongs into the file with its version.
#
# usage: abi_test.sh VERSION-FILE SYMBOLS-FILE LIBRARY...
set -euo pipefail
tree=$PWD
version=$(<"$1")
symbols=$(realpath "$2")
shift 2
libraries=()
for library; do libraries+=("-e$(realpath "$library")"); done
work=${TEST_TMPDIR:-$(mktemp -d)}
mkdir -p "$work/debian"
cd "$work"
printf 'Source: rcsock\n\nPackage: librcsock0\nArchitecture: amd64\n' >debian/control
dpkg-gensymbols "-v$version" -plibrcsock0 "${libraries[@]}" "-I$symbols" -c4 -O/dev/null
# The check can fail: without one of its lines it does.
grep -v ' rcs_epoll_arm@' "$symbols" >less
if dpkg-gensymbols "-v$version" -plibrcsock0 "${libraries[@]}" -Iless -c4 -O/dev/null >/dev/null 2>&1; then
  echo "FAILED: a new symbol was not noticed" >&2
  exit 1
fi
# The version stands in VERSION, and packages and the changelog follow it.
cd "$tree"
head -n 1 debian/changelog | grep -qF "rcsock ($version)" || {
  echo "FAILED: debian/changelog does not begin with $version, as VERSION does" >&2
  exit 1
}
grep -qF "## [$version]" CHANGELOG.md || {
  echo "FAILED: CHANGELOG.md has no section for $version" >&2
  exit 1
}
echo "ok"
