#!/bin/bash
# usage: perf_test RCSOCK PRELOAD [SCRIPT]
#
# SCRIPT is perf_test.py, unless another one of this folder is named.
exec python3 "$(dirname "$(readlink -f "$0")")/${3:-perf_test.py}" "$(realpath "$1")" "$(realpath "$2")"
