#!/bin/bash
# usage: wrapped_test PROGRAM SHIM BEHIND: what a library behind the preload has
# made of a socket is no TCP connection, and nobody looks for its lane.
set -uo pipefail
program=$1 shim=$2 behind=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
LD_PRELOAD=$shim:$behind RCSOCK_PROMOTE_OPS=1 RCSOCK_STATS=$work/stats.%p \
  "$program" timeouts >"$work/out" 2>"$work/err" || {
  echo "FAILED: status $?"
  failed=1
}
cat "$work/out" "$work/err"
for end in server client; do
  grep -q "timeouts $end: exit 0" "$work/out" || { echo "FAILED: $end"; failed=1; }
done
# (One process is neither end.)
cat "$work"/stats.*
[ "$(grep -c '"reasons": {"pinned_syscall": 1}' "$work"/stats.* |
  grep -c ':1$')" = 2 ] || { echo "FAILED: reasons"; failed=1; }
exit $failed
