#!/bin/bash
# usage: instructions_test COUNT CALLS CALLS_NAMED CALLS_LINKED SHIM
#
# What a call costs through the preload, and in the two ways to use the library:
# instructions, not time.  The library may take 2 % more.
set -euo pipefail
count=$1 calls=$2 named=$3 linked=$4 shim=$(readlink -f "$5")
export RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm
failed=0
for mode in blocking epoll; do
  preload=$("$count" /usr/bin/env LD_PRELOAD="$shim" "$calls" $mode 5)
  for how in named linked; do
    library=$("$count" "${!how}" $mode 5)
    awk -v m=$mode -v h=$how -v p="$preload" -v l="$library" '
      BEGIN {
        printf "%s: preload %d, %s %d instructions (%+.2f%%)\n",
          m, p / 16, h, l / 16, 100 * (l / p - 1)
        exit l > 1.02 * p
      }' || failed=1
  done
done
exit $failed
