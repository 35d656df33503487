#!/bin/bash
# usage: loaded_test PROGRAM LIBRCSOCK SHIM: alone, and under the preload
set -euo pipefail
"$1" "$PWD/$2"
LD_PRELOAD=$PWD/$3 "$1" "$PWD/$2"
