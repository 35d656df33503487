#!/bin/bash
# usage: one_request_test COUNT_INSTRUCTIONS COUNT_SYSCALLS ONE_REQUEST SHIM
#
# What the preload adds to a connection of one request, at both ends together: no
# system call, and so many instructions at most, in a program of one thread and in
# one that has had two.  And calls that change nothing make no system call.
set -euo pipefail
instructions=$1 calls=$2 program=$3 shim=$(readlink -f "$4")
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES
out=$TEST_TMPDIR/calls.json
count() {
  local mode=$1
  shift
  "$calls" "$out" "$@" "$program" "$mode" 100 >&2
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["total"])' "$out"
}
plain=$(count calls /usr/bin/env)
with=$(count calls /usr/bin/env LD_PRELOAD="$shim")
echo "system calls of 100 connections: $plain plain, $with with the preload"
# A program of one thread uses the streams again without a fence.
((with <= plain))
plain=$(count repeats /usr/bin/env)
with=$(count repeats /usr/bin/env LD_PRELOAD="$shim")
echo "system calls of 200 that change nothing: $plain plain, $with with the preload"
# The conductor may make some meanwhile.
((plain >= 200 && with <= 20))
# MODE MOST
steps() {
  local plain_steps with_steps
  plain_steps=$("$instructions" "$program" "$1" 9)
  with_steps=$("$instructions" /usr/bin/env LD_PRELOAD="$shim" "$program" "$1" 9)
  echo "instructions of one, $1: $plain_steps plain, $with_steps with the preload"
  ((with_steps - plain_steps <= $2))
}
steps instructions 3250
steps threads 3830
