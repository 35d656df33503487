#!/bin/bash
# usage: own_syscalls_test PROGRAM SHIM
#
# PROGRAM makes system calls by machine code of its own: it prints what it does
# over plain TCP, no connection of its leaves TCP, and the reason is said.
set -uo pipefail
program=$1 shim=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" >"$work/plain" || exit 1
RCSOCK_PROMOTE_OPS=1 RCSOCK_LOG=1 RCSOCK_STATS=$work/stats.%p \
  LD_PRELOAD=$shim "$program" >"$work/shim" 2>"$work/err"
status=$?
bad=0
if [ $status -ne 0 ] || ! diff "$work/plain" "$work/shim"; then
  echo "FAILED: not as plain ($status)"
  tail -20 "$work/err"
  bad=1
fi
promoted=$(cat "$work"/stats.* | grep -o '"promoted": *[0-9]*' | grep -cv ' *0$')
if [ "$promoted" -ne 0 ]; then
  echo "FAILED: $promoted processes had a lane"
  bad=1
fi
if ! grep -q '"raw_calls"' "$work"/stats.*; then
  echo "FAILED: no process says raw_calls"
  bad=1
fi
if ! grep -q 'no lanes: .*own_syscalls makes system calls of its own' "$work/err"; then
  echo "FAILED: the log does not say why"
  head "$work/err"
  bad=1
fi
exit $bad
