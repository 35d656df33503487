#!/bin/bash
# usage: instructions_test COUNT CALLS CALLS_NAMED CALLS_LINKED SHIM [ROUND_TRIPS]
#
# What a call costs through the preload, and in the two ways to use the library:
# instructions, not time.  The library may take 2 % more.
set -euo pipefail
count=$1 calls=$2 named=$3 linked=$4 shim=$(readlink -f "$5") rounds=${6:-10}
export RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm
failed=0
# The fewest of six: a look at the kernel or a late wake-up falls into one of
# them and not into the next.
fewest() {
  for _ in 1 2 3 4 5 6; do "$count" "$@"; done | sort -n | head -1
}
for mode in blocking epoll; do
  preload=$(fewest /usr/bin/env LD_PRELOAD="$shim" "$calls" $mode "$rounds")
  for how in named linked; do
    library=$(fewest "${!how}" $mode "$rounds")
    awk -v m=$mode -v h=$how -v p="$preload" -v l="$library" -v n="$rounds" '
      BEGIN {
        printf "%s: preload %d, %s %d instructions (%+.2f%%)\n",
          m, p / n, h, l / n, 100 * (l / p - 1)
        exit l > 1.02 * p
      }' || failed=1
  done
done
exit $failed
