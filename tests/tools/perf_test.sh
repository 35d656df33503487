#!/bin/bash
# usage: perf_test RCSOCK PRELOAD
exec python3 "$(dirname "$(readlink -f "$0")")/perf_test.py" "$(realpath "$1")" "$(realpath "$2")"
