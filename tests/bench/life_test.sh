#!/bin/bash
# usage: life_test.sh COUNT_SYSCALLS OPEN_LOOP PRELOAD
#
# What a connection that takes a lane costs each end beside its messages, in
# system calls: the search, the switch, and the end.
set -euo pipefail

counts=$(readlink -f "$1")
program=$(readlink -f "$2")
preload=$(readlink -f "$3")
# shellcheck source=tests/bench/two_ends.sh
source tests/bench/two_ends.sh

port=$(free_port)
# Asked for by hand, each connection gets its lane, whatever others came to.
export RCSOCK_PROMOTE_OPS=8
"$counts" "$tmp/server.json" /usr/bin/env LD_PRELOAD="$preload" \
  RCSOCK_STATS="$tmp/server.stats" "$program" --role server --port "$port" --life 50 &
server=$!
"$counts" "$tmp/client.json" /usr/bin/env LD_PRELOAD="$preload" \
  RCSOCK_STATS="$tmp/client.stats" "$program" --port "$port" --connections 4 \
  --rate 1000 --seconds 4 --warm-up 0 --life 50 >"$tmp/out"
# The tracer writes down what it has counted when the server has ended.
kill "$(pgrep -P "$server")"
wait "$server" || true
server=

python3 - "$tmp" <<'END'
import json
import pathlib
import sys

tmp = pathlib.Path(sys.argv[1])
# Calls that carry nothing, for each lane.  Where both ends of a latch run at once
# there are more barriers.  The client arms a timer for each request that is due.
WHAT = {"server": ("getresuid", "membarrier", "timerfd_settime"),
        "client": ("getresuid", "membarrier")}
MOST = 48
bad = []
for end in ("server", "client"):
    counted = json.loads((tmp / f"{end}.json").read_text())
    lanes = json.loads((tmp / f"{end}.stats").read_text())["promoted"]
    lives, calls = counted["marks"] - 1, counted["calls"]
    print(f"{end}: {lives} lives, {lanes} had a lane; calls for each lane:",
          {name: round(n / max(lanes, 1), 1)
           for name, n in sorted(calls.items(), key=lambda one: -one[1])})
    if lanes < lives / 2:
        bad.append(f"{end}: few had a lane")
        continue
    all_of = sum(calls.get(name, 0) for name in WHAT[end])
    if all_of > MOST * lanes:
        bad.append(f"{end}: {all_of / lanes:.1f} of {', '.join(WHAT[end])}")
if bad:
    sys.exit("FAIL: " + "; ".join(bad))
END
echo PASS
