#!/bin/bash
# usage: no_unwinder_test PROGRAM PROGRAM-BY-NAME SHIM
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES
empty=$(mktemp -d)
trap 'rmdir "$empty"' EXIT
run() {
  RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm LD_PRELOAD=$shim timeout 60 "$@"
}
shim=$(readlink -f "$3")
run "$1" "$empty"
run "$2"
