#!/bin/bash
# usage, in a guest: perf_test RCSOCK PRELOAD
#
# `rcsock perf` over the device: rcsock's RDMA lane and raw verbs, streams, round
# trips and many connections.  Speed is not looked at.
set -euo pipefail
tool=$(realpath "$1") host=$RDMA_IP port=7200
RCSOCK_PRELOAD=$(realpath "$2")
export RCSOCK_PRELOAD
tmp=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$tmp"' EXIT

mkfifo "$tmp/listening"
"$tool" perf -s -p $port >"$tmp/listening" &
server=$!
exec 3<"$tmp/listening"
read -r -u 3 line
[[ $line == *$port ]]
cat <&3 >/dev/null &

# run NAME LANE OPTIONS...
run() {
  local name=$1 lane=$2
  shift 2
  "$tool" perf -c "$host" -p $port -J -t 0.3 "$@" >"$tmp/out"
  python3 - "$name" "$lane" "$tmp/out" <<'END'
import json
import sys

name, lane, path = sys.argv[1:]
run = json.load(open(path))
assert run["lane"] == lane, (name, run["lane"], run["reasons"])
assert run["lane_share"] > 0.95, (name, run["lane_share"])
assert run["messages_per_second"] > 0, (name, run)
print(name, lane, round(run["messages_per_second"]), "a second")
END
}

run "a stream" rdma --transport rdma
run "a stream back" rdma --transport rdma -R
run "round trips" rdma --transport rdma --latency
run "eight connections" rdma --transport rdma --connections 8 --active 4
for size in 64 64K; do
  run "a stream of $size" verbs --transport verbs -l $size
done
run "a stream back" verbs --transport verbs -R
run "both ways" verbs --transport verbs --bidir
run "two streams" verbs --transport verbs -P 2
run "short connections" verbs --transport verbs --short
run "round trips" verbs --transport verbs --latency
run "three connections" verbs --transport verbs --connections 3 --active 2

# A comparison, with the calls counted.
"$tool" perf -c "$host" -p $port --compare --transport tcp,rdma,verbs --rounds 1 \
  -t 0.3 --latency --syscalls -J >"$tmp/out"
python3 - "$tmp/out" <<'END'
import json
import sys

rows = json.load(open(sys.argv[1]))["compare"]
assert [r["transport"] for r in rows] == ["tcp", "rdma", "verbs"], rows
for row in rows:
    assert row["vs_tcp"] > 0, row
    assert row["median"]["client"]["syscalls_per_message"] > 0, row
END
kill "$server"
wait "$server"
server=
