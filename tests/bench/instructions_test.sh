#!/bin/bash
# usage: instructions_test COUNT CALLS CALLS_NAMED CALLS_LINKED SHIM
#
# What a call costs through the preload, and in the two ways to use the library:
# instructions, not time.  The library may take 2 % more, and 6 % by epoll: it does
# not know that the program has one thread.  The preload's limits are those of
# docs/performance.md, for the compiler of Debian 12.
set -euo pipefail
count=$1 calls=$2 named=$3 linked=$4 shim=$(readlink -f "$5")
export RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm
declare -A limits=([blocking]=782 [epoll]=1380)
failed=0

# usage: round LIMIT TRIPS CALLS_ARGUMENT...
# What a round trip takes at most.  TRIPS of them make one repetition.
round() {
  local limit=$1 trips=$2 least=0 one
  shift 2
  for _ in 1 2 3 4 5; do
    one=$("$count" --alone /usr/bin/env LD_PRELOAD="$shim" "$calls" "$@")
    if ((least == 0 || one < least)); then least=$one; fi
    if ((least < trips * (limit + 1))); then break; fi
  done
  echo "$*: $((least / trips)) instructions"
  if ((least >= trips * (limit + 1))); then
    echo "$*: may take $limit"
    failed=1
  fi
}
# epoll_ctl: MOD, or DEL and ADD, for each message.
round 2270 16 once 3
round 2490 16 anew 3
# 8 connections in a set: with DEL and ADD for each message, and the waits alone.
round 2020 $((16 * 8)) anew 1 8
round 975 $((16 * 8)) epoll 1 8
for mode in blocking epoll; do
  preload=$("$count" /usr/bin/env LD_PRELOAD="$shim" "$calls" $mode 5)
  # A look at the kernel that the clock brings adds to a count.  So the least of
  # some counts it is.
  for _ in 1 2 3 4; do
    if ((preload < 16 * (limits[$mode] + 1))); then break; fi
    again=$("$count" /usr/bin/env LD_PRELOAD="$shim" "$calls" $mode 5)
    if ((again < preload)); then preload=$again; fi
  done
  if ((preload >= 16 * (limits[$mode] + 1))); then
    echo "$mode: $((preload / 16)) instructions, and may take ${limits[$mode]}"
    failed=1
  fi
  for how in named linked; do
    library=$("$count" "${!how}" $mode 5)
    awk -v m=$mode -v h=$how -v p="$preload" -v l="$library" '
      BEGIN {
        printf "%s: preload %d, %s %d instructions (%+.2f%%)\n",
          m, p / 16, h, l / 16, 100 * (l / p - 1)
        exit l > (m == "epoll" ? 1.06 : 1.02) * p
      }' || failed=1
  done
done
exit $failed
