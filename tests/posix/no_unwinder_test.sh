#!/bin/bash
# usage: no_unwinder_test PROGRAM SHIM
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES
RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm LD_PRELOAD=$(readlink -f "$2") timeout 60 "$1"
