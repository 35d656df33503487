#!/bin/bash
# usage: latches_test.sh LOOPS PRELOAD
#
# Threads that have nothing to do with each other do not meet.  Of the latches that a
# process has once, a message on a lane takes none, with 16 threads at each end.  Nor does
# it where the 16 threads of the server share one epoll set.  (An event of a ONESHOT
# registration takes one when it is told and one when it is armed.)  These are counts, so
# the load of the machine does not matter.
set -euo pipefail
loops=$1
preload=$(readlink -f "$2")
# shellcheck source=tests/bench/two_ends.sh
source tests/bench/two_ends.sh
export RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm

under() { # NAME COMMAND...
  LD_PRELOAD=$preload RCSOCK_STATS=$tmp/$1.json "${@:2}"
}
all_promoted() {
  grep -q '"promoted": 16,' "$tmp/server.json" && grep -q '"promoted": 16,' "$tmp/client.json"
}
# On a busy machine the round trips may be over before the last lane has come.
run() { # WAIT ROUND_TRIPS [SERVER'S OPTION]
  local try
  for try in 1 2 3 4 5 6; do
    run_once "$@"
    if all_promoted; then return; fi
  done
  cat "$tmp"/*.json >&2
  echo "FAIL: $1: not all streams had lanes, $try times" >&2
  exit 1
}
run_once() { # as run
  local port
  port=$(free_port)
  rm -f "$tmp"/*.json
  under server "$loops" --role server --port "$port" --loops 16 --wait "$1" "${@:3}" &
  server=$!
  under client "$loops" --role client --port "$port" --loops 16 --wait "$1" \
    --iters "$2" >"$tmp/out"
  wait "$server"
  server=
}
of() { # END LATCH
  sed -E "s/.*\"latches\": \{[^}]*\"$2\": ([0-9]+).*/\1/" "$tmp/$1.json"
}

# Between two runs only the number of round trips differs.  What the making of 16 lanes
# takes differs by some hundreds.
declare -A limit=([recv]=0 [epoll]=0 [oneshot]=2000)  # for 1,000 round trips
# While a set is in use the conductor looks after it every 4 ms, whatever comes.
looks_takes=1500  # in a second
few=2000 many=12000
failed=0
for way in recv epoll oneshot "epoll --shared" "oneshot --shared"; do
  read -r wait shared <<<"$way"
  declare -A before=()
  run "$wait" $few ${shared:+"$shared"}
  for end in server client; do
    for latch in interest conductor tables; do
      before[$end.$latch]=$(of $end $latch)
    done
  done
  begin=${EPOCHREALTIME/./}
  run "$wait" $many ${shared:+"$shared"}
  us=$((${EPOCHREALTIME/./} - begin))
  for end in server client; do
    for latch in interest conductor tables; do
      each=$((($(of $end $latch) - ${before[$end.$latch]}) / (16 * (many - few) / 1000)))
      most=0
      if [[ $latch == interest ]]; then most=${limit[$wait]}; fi
      if [[ -n $shared ]]; then
        most=$((most + looks_takes * us / 1000000 / (16 * (many - few) / 1000)))
      fi
      # A thread that falls asleep amid an event may take a latch once more.
      most=$((most + most / 20 + 10))
      echo "$way, $end: $latch: $each for 1,000 round trips"
      if ((each > most)); then
        echo "FAIL: at most $most" >&2
        failed=1
      fi
    done
  done
done
exit $failed
