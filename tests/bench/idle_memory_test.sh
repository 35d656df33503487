#!/bin/bash
# usage: idle_memory_test IDLE_MEMORY SHIM
#
# 100 connections on shared memory, each of which has carried a megabyte each
# way. Six seconds later they have given their rings back: 32 KiB is left of each,
# and what two processes have for themselves.
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_RULES
stats=$TEST_TMPDIR/stats
RCSOCK_STATS=$stats.%p LD_PRELOAD=$(readlink -f "$2") \
  "$1" --connections 100 --idle 12 --most 8
# Both processes have had all on lanes.
(($(grep -l '"promoted": 100\b' "$stats".* | wc -l) == 2)) || {
  cat "$stats".*
  exit 1
}
