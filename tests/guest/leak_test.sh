#!/bin/bash
# usage, in a guest: leak_test PRELOAD [SECONDS]
#
# Connections that end in every way leave nothing behind: see leak.py.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
exec python3 "$here/leak.py" "$(realpath "$1")" "${2:-10}"
