#!/bin/bash
# usage: pair_test PAIR rxe|siw
#
# What tests/guest/pair promises, and every way to break the link or the device.
set -euo pipefail
pair=$1 device=$2
here=$(dirname "${BASH_SOURCE[0]}")
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}

failed=0
# status NAME EXPECTED ARGS...
status() {
  local name=$1 expected=$2 actual=0
  shift 2
  "$pair" -d "$device" "$@" || actual=$?
  [[ $actual == "$expected" ]] && return
  echo "FAILED: $name: status $actual, not $expected"
  failed=1
}

status "rping, and the ways to break it" 0 -t 120 -b -p 7174 \
  bash "$here/pair_server.sh" -- bash "$here/pair_client.sh"
# The rest is of guests, whatever their device.
if [[ -n ${RCSOCK_TEST_DEVICE:-} || $device != rxe ]]; then exit "$failed"; fi
status "the client's status" 4 -t 60 -b true -- sh -c 'exit 4'
status "the server's status" 3 -t 60 -b sh -c 'exit 3' -- true
status "the server is killed" 0 -t 60 sleep 1000 -- true
status "time limit" 124 -t 5 sleep 1000 -- sleep 1000
exit "$failed"
