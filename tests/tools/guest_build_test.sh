#!/bin/bash
# usage: guest_build_test BUILD
#
# tools/test skips the tests that need a guest only where no guest can run, and fails
# where its kernel could not be built: tests/guest/build must tell the two apart.
set -euo pipefail
build=$PWD/$1
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/guest_build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# expect NAME STATUS LINE MACHINE PTRACE: LINE is what the one line begins with
expect() {
  mkdir -p "$tmp/bin"
  printf '#!/bin/sh\necho %s\n' "$4" >"$tmp/bin/uname"
  printf '#!/bin/sh\nexit %s\n' "$5" >"$tmp/bin/perl"  # it tries ptrace
  chmod +x "$tmp"/bin/*
  local status=0
  # Nothing is in this cache, and nothing can be written there.
  PATH=$tmp/bin:$PATH RCSOCK_GUEST_CACHE=/dev/null/cache \
    "$build" >"$tmp/out" 2>"$tmp/err" || status=$?
  [[ $status == "$2" && ! -s $tmp/out && $(wc -l <"$tmp/err") == 1 &&
    $(<"$tmp/err") == "guest: $3"* ]] && return
  echo "FAILED: $1: status $status"
  cat "$tmp/out" "$tmp/err"
  exit 1
}
expect "another machine" 3 "none can run here: " aarch64 0
expect "no ptrace" 3 "none can run here: " x86_64 1
expect "a build that fails" 1 "cannot build the kernel: " x86_64 0
