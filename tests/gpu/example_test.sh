#!/bin/bash
# usage: example_test LIBRCSOCK LIBCUDA PAGE
#
# The program of docs/gpu.md is compiled without a warning and run.
set -euo pipefail
library=$(readlink -f "$1")
cuda=$(readlink -f "$2")
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '/^```c$/{on=1;next} /^```$/{on=0} on' "$3" >"$work/example.c"
[[ -s $work/example.c ]]
gcc -std=gnu11 -Wall -Wextra -Wpedantic -Werror -O1 -I"$here/../../lib/include" -I"$here/include" \
  "$work/example.c" -o "$work/example" "$library" "$cuda"
LD_LIBRARY_PATH=$(dirname "$library"):$(dirname "$cuda") timeout 60 "$work/example" | tee "$work/out"
grep -q '^8388608 bytes, the last is g$' "$work/out"
