#!/bin/bash
# usage: options_test OPTIONS SHIM PAGE
#
# docs/options.md is what OPTIONS prints:
#   LD_PRELOAD=SHIM RCSOCK_PROMOTE_OPS=1 OPTIONS >docs/options.md
set -euo pipefail
export RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm
made=$(LD_PRELOAD=$2 "$1")
diff -u "$3" - <<<"$made"
