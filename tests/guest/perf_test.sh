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

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
run() {
  python3 "$here/perf_run.py" "$tool" "$host" $port "$@" -t 0.3
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
  -t 0.3 --settle 30 --latency --syscalls -J >"$tmp/out" || [[ $? == 3 ]]
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
