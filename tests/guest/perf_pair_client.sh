# The client of perf_pair_test.sh: perf_pair_client rxe|siw
# shellcheck shell=bash
set -euo pipefail
device=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# run NAME LANE OPTIONS...: the lane is used, and bytes move the way they should
run() {
  local name=$1 lane=$2
  shift 2
  "$RCSOCK_TOOL" perf -c "$PEER_IP" -J -t 0.2 "$@" >"$tmp/out"
  python3 - "$name" "$lane" "$tmp/out" "$@" <<'END'
import json
import sys

name, lane, path, *options = sys.argv[1:]
run = json.load(open(path))
client, server = run["client"], run["server"]
assert run["lane"] == lane, (name, run["lane"], run["reasons"])
assert run["lane_share"] > 0.95, (name, run["lane_share"])
assert run["messages_per_second"] > 0, (name, run)
assert run["bytes_per_second"] > 0, (name, run)
for way, other in ("tx", "rx"), ("rx", "tx"):
    if "--short" not in options and not lane == "rdma":
        assert client[way + "_bytes"] == server[other + "_bytes"], (name, run)
sends = {"-R": (False, True), "--bidir": (True, True)}.get(
    options[-1], (True, True) if "--latency" in options or "--short" in options
    else (True, False))
assert (client["tx_bytes"] > 0, server["tx_bytes"] > 0) == sends, (name, run)
if "--short" in options:
    assert run["connect_us"]["count"] > 0, (name, run)
print(name, lane, round(run["messages_per_second"]), "a second")
END
}

run "a stream" rdma --transport rdma -l 16K
run "round trips" rdma --transport rdma --latency
run "a stream" verbs --transport verbs -l 16K
run "two streams" verbs --transport verbs -l 64 -P 2
run "a stream back" verbs --transport verbs -l 16K -R
run "both ways" verbs --transport verbs -l 16K --bidir
run "both ways, two, small" verbs --transport verbs -l 64 -P 2 --bidir
run "round trips" verbs --transport verbs --latency
# On siw the server misses one of many short connections, and says so.
if [[ $device != siw ]]; then
  run "short" verbs --transport verbs --short
  run "short, two at a time" verbs --transport verbs -P 2 --short
fi

# So many bytes, both ways.
"$RCSOCK_TOOL" perf -c "$PEER_IP" -J --transport verbs -n 1M -l 16K --bidir >"$tmp/out"
python3 - "$tmp/out" <<'END'
import json
import sys

run = json.load(open(sys.argv[1]))
for end in "client", "server":
    for way in "tx", "rx":
        assert run[end][way + "_bytes"] == 1 << 20, (end, way, run)
END

"$RCSOCK_TOOL" perf -c "$PEER_IP" --compare --transport tcp,rdma,verbs --rounds 1 \
  -t 0.3 --latency -J >"$tmp/out"
python3 - "$tmp/out" <<'END'
import json
import sys

rows = json.load(open(sys.argv[1]))["compare"]
assert [r["transport"] for r in rows] == ["tcp", "rdma", "verbs"], rows
for row in rows:
    assert row["vs_tcp"] > 0, row
END

# A bound for rings that one end has holds for both.
RCSOCK_MAX_RING=32K "$RCSOCK_TOOL" perf -c "$PEER_IP" --transport rdma -t 3 >"$tmp/out" &
python3 - "$RCSOCK_TOOL" <<'END'
import json
import subprocess
import sys

for _ in range(200):
    out = subprocess.run([sys.argv[1], "stat", "--json", "--over", "0.05"],
                         stdout=subprocess.PIPE).stdout
    for process in json.loads(out)["processes"]:
        for stream in process["streams"]:
            if stream.get("rdma", {}).get("tx_bytes", 0) > 4_000_000:
                assert stream["ring"]["tx_bytes"] == 32768, stream
                assert process["totals"]["budget"]["max_ring"] == 32768, process
                print("rings of 32 KiB")
                sys.exit()
sys.exit("no stream has got far enough")
END
# (3: its share of the lane, which was late here.)
wait $! || [[ $? == 3 ]]

# What cannot be: one line, and why.
status=0
"$RCSOCK_TOOL" perf -c "$PEER_IP" --transport shm -t 0.2 --settle 1 >"$tmp/out" 2>"$tmp/err" ||
  status=$?
[[ $status == 3 && $(grep -c "on the shm lane" "$tmp/err") == 1 ]] || {
  echo "FAILED: shm to another host: status $status"
  cat "$tmp/err"
  exit 1
}
