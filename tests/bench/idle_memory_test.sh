#!/bin/bash
# usage: idle_memory_test IDLE_MEMORY SHIM
#
# 100 connections on shared memory, each of which has carried a megabyte each
# way: both ends together take 420 KiB for each, once they are idle. (The goal is
# 32 KiB.)
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_RULES
stats=$TEST_TMPDIR/stats
RCSOCK_STATS=$stats.%p LD_PRELOAD=$(readlink -f "$2") \
  "$1" --connections 100 --idle 2 --most 41
# Both processes have had all on lanes.
(($(grep -l '"promoted": 100\b' "$stats".* | wc -l) == 2)) || {
  cat "$stats".*
  exit 1
}
