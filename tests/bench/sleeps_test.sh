#!/bin/bash
# usage: sleeps_test COUNT_INSTRUCTIONS COUNT_SYSCALLS SLEEPS SHIM
#
# What a wait takes that sleeps, without the conductor's calls.  A sleep is one system
# call, and a message to a thread that sleeps is another.  So a request and its answer
# take four at both ends together, and a wait that ends by its time takes one.  A thread
# that sleeps for long fences first.  A wait that goes on until the time of the wait before
# finds the timer armed.  Before it sleeps, a thread looks at each of its streams a few
# times, and not more often.
set -euo pipefail
instructions=$1 calls=$2 program=$3 shim=$(readlink -f "$4")
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES RCSOCK_SPIN_US
export RCSOCK_PROFILE=efficient RCSOCK_LANES=shm RCSOCK_PROMOTE_OPS=1
out=$TEST_TMPDIR/calls.json
connections=16
failed=0
under() { # COMMAND... before the program's words
  "$@" /usr/bin/env LD_PRELOAD="$shim" "$program" "${words[@]}"
}
most() { # LIMIT COUNT TIMES WHAT
  echo "${words[*]}: $2 $4 for $3, and may be $1 for 100"
  if (($2 * 100 > $1 * $3)); then
    echo FAIL >&2
    failed=1
  fi
}

# Calls for 100 waits.  A poll that a bell has woken takes the edge off its set.  A thread
# that stood still on a busy machine may look, nap or fence once more.
declare -A limit=(
  [epoll.answers]=410 [epoll.brief]=130 [epoll.long]=250
  [epoll.again]=530
  [poll.answers]=510 [poll.brief]=130 [poll.long]=250
)
declare -A count=([answers]=3000 [brief]=500 [long]=50 [again]=500)
for wait in epoll poll; do
  for what in answers brief long again; do
    [ "${limit[$wait.$what]-}" ] || continue
    words=(calls $wait $what $connections "${count[$what]}")
    under "$calls" "$out"
    total=$(python3 - "$out" <<'END'
import json
import sys

calls = json.load(open(sys.argv[1]))["calls"]
print(calls, file=sys.stderr)
print(sum(calls.get(name, 0) for name in (
    "epoll_pwait2", "ppoll", "write", "membarrier", "futex", "sched_yield")))
END
    )
    most "${limit[$wait.$what]}" "$total" "${count[$what]}" "system calls"
    [ $what = again ] || continue
    # The conductor arms its own twice in a turn, which ends with epoll_wait.
    timers=$(python3 -c 'import json, sys
calls = json.load(open(sys.argv[1]))["calls"]
print(calls.get("timerfd_settime", 0) - 2 * calls.get("epoll_wait", 0))' "$out")
    most 120 "$timers" "${count[again]}" "armed timers"
    # Without such timers there are none.  On a busy machine many waits are over first.
    if ((timers * 100 < 10 * count[again])); then
      echo FAIL >&2
      failed=1
    fi
  done
done

words=(instructions epoll long $connections 5)
most 650000 "$(under "$instructions")" 1 instructions
exit $failed
