# The client of perf_pair_test.sh
# shellcheck shell=bash
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
run() {
  python3 "$here/perf_run.py" "$RCSOCK_TOOL" "$PEER_IP" 18592 "$@" -t 0.2
}

run "a stream" rdma --transport rdma -l 16K
run "round trips" rdma --transport rdma --latency
run "a stream" verbs --transport verbs -l 16K
run "two streams" verbs --transport verbs -l 64 -P 2
run "a stream back" verbs --transport verbs -l 16K -R
run "both ways" verbs --transport verbs -l 16K --bidir
run "both ways, two, small" verbs --transport verbs -l 64 -P 2 --bidir
run "round trips" verbs --transport verbs --latency
run "short" verbs --transport verbs --short
run "short, eight at a time" verbs --transport verbs -P 8 --short

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
  -t 0.3 --settle 30 --latency -J >"$tmp/out" || [[ $? == 3 ]]
python3 - "$tmp/out" <<'END'
import json
import sys

rows = json.load(open(sys.argv[1]))["compare"]
assert [r["transport"] for r in rows] == ["tcp", "rdma", "verbs"], rows
for row in rows:
    assert row["vs_tcp"] > 0, row
END

# A bound for rings that one end has holds for both.
RCSOCK_MAX_RING=32K python3 - "$RCSOCK_TOOL" "$PEER_IP" <<'END'
import json
import subprocess
import sys

tool, host = sys.argv[1:]


def ring_seen(perf):
    while perf.poll() is None:
        out = subprocess.run([tool, "stat", "--json", "--over", "0.05"],
                             stdout=subprocess.PIPE).stdout
        for process in json.loads(out)["processes"]:
            for stream in process["streams"]:
                if stream.get("rdma", {}).get("tx_bytes", 0) > 4_000_000:
                    assert stream["ring"]["tx_bytes"] == 32768, stream
                    assert process["totals"]["budget"]["max_ring"] == 32768, process
                    return True
    assert perf.returncode in (0, 3), perf.returncode  # 3: a lane that was late
    return False


for _ in range(4):
    with subprocess.Popen([tool, "perf", "-c", host, "--transport", "rdma",
                           "--settle", "30", "-t", "5"],
                          stdout=subprocess.DEVNULL) as perf:
        if ring_seen(perf):
            perf.wait()
            print("rings of 32 KiB")
            sys.exit()
sys.exit("no stream has got far enough")
END

# What cannot be: one line, and why.
status=0
"$RCSOCK_TOOL" perf -c "$PEER_IP" --transport shm -t 0.2 --settle 1 >"$tmp/out" 2>"$tmp/err" ||
  status=$?
[[ $status == 3 && $(grep -c "on the shm lane" "$tmp/err") == 1 ]] || {
  echo "FAILED: shm to another host: status $status"
  cat "$tmp/err"
  exit 1
}
