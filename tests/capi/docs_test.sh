#!/bin/bash
# usage: docs_test LIBRCSOCK LIBRCSOCK_RSOCKET PAGE...
#
# Every C program of the pages is compiled without a warning and run.
set -uo pipefail
library=$(readlink -f "$1")
rsocket=$(readlink -f "$2")
shift 2
include=$(dirname "$0")/../../lib/include
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$(dirname "$library"):$(dirname "$rsocket")
failed=0
count=0
for page; do
  awk -v out="$work/$(basename "$page" .md)" '
    /^```c$/ { ++n; on = 1; next }
    /^```$/ { on = 0 }
    on { print > (out "." n ".c") }' "$page"
done
for source in "$work"/*.c; do
  ((++count))
  name=$(basename "$source" .c)
  if ! gcc -std=gnu11 -Wall -Wextra -Wpedantic -Werror -O1 -I"$include" \
    "$source" -o "$work/$name" "$rsocket" "$library"; then
    echo "FAILED: $name does not compile"
    failed=1
  elif ! timeout 60 "$work/$name"; then
    echo "FAILED: $name"
    failed=1
  fi
done
echo "$count programs"
[[ $count -ge 4 ]] || failed=1
exit $failed
