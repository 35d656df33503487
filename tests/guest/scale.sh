#!/bin/bash
# usage: scale.sh SHIM SOAK all|uniform|pinned|moving|rings|whisper CONNECTIONS QPS [SECONDS]
#
# Many connections and a limit of lanes, inside one guest; every byte is checked
# by soak.  Prints what came of it, as JSON.
#   all      all of CONNECTIONS are promoted, at one time (QPS is at least that):
#            none leaves its lane before the last one has its own
#   uniform  all are equally active, and more than QPS: those that have a lane
#            keep it
#   moving   three quarters of QPS are active, others every SECONDS / 4: they
#            have the lanes most of the time
#   rings    rings grow, all is silent, and what is pinned then is what idle
#            lanes pin
#   whisper  rings grow, and then next to nothing goes over them: small rings
#   pinned   all are equally active; memory for a third of them
# With RCSOCK_MAX_PINNED no end may ever have pinned more.
set -euo pipefail
shim=$1 soak=$2 kind=$3 connections=$4 qps=$5 seconds=${6:-20}
port=${SCALE_PORT:-7991}
dir=$(mktemp -d)
ulimit -n $((connections * 2 + 4096))
ulimit -l unlimited
export RCSOCK_LANES=rdma RCSOCK_PROMOTE_OPS=${RCSOCK_PROMOTE_OPS:-8} \
  RCSOCK_LOG=${RCSOCK_LOG:-1} RCSOCK_MAX_QPS=$qps

if [[ $kind == pinned ]]; then
  export RCSOCK_MAX_PINNED=$((connections / 3 * 32))K
fi

fail() {
  echo "scale $kind: $*" >&2
  local end
  for end in client server; do
    echo "$end: $(promoted $end) promotions" >&2
    sed -n 's/.*\(left its lane: .*\|no lane: .*\)/\1/p' "$dir/log.$end" |
      sort | uniq -c >&2
    tail -n 5 "$dir/log.$end" >&2
  done
  exit 1
}
# until_true SECONDS WHAT COMMAND...: a safety net.
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    kill -0 $client 2>/dev/null || fail "the client has ended"
    ((SECONDS < end)) || fail "never: $what"
    sleep 0.1
  done
}
# Connections that have been on a lane; how many switches there were.
promoted() { grep 'promoted to rdma' "$dir/log.$1" | sort -u | wc -l || true; }
all_promoted() { (($(promoted client) >= connections && $(promoted server) >= connections)); }
# Lanes that were left, at either end.
left() { grep -h 'left its lane' "$dir/log.client" "$dir/log.server" | wc -l || true; }
gone_by() { ((SECONDS >= $1)); }
pinned() { awk '/^VmPin:/ {print $2}' "/proc/$1/status"; }
# Idle lanes, whose small rings are all that is pinned at either end (on iWARP
# they are smaller, and there are receive buffers).
all_idle() {
  local most=$((32 * connections))
  (($(pinned $client) <= most && $(pinned $server) <= most))
}

large_rings() { ! all_idle; }

# ... and there are lanes, at both ends.
small_again() {
  (($(pinned $client) > 0 && $(pinned $server) > 0)) && all_idle &&
    (($(grep -c 'promoted to rdma' "$dir/log.client") > connections))
}

LD_PRELOAD=$shim RCSOCK_STATS=$dir/stats.server "$soak" server "$port" \
  --connections "$connections" --message 65536 2>"$dir/log.server" &
server=$!
guestctl listening "$port"
case $kind in
  all | uniform | pinned) traffic=(--message 64 --bytes 64 --pause 5) ;;
  moving)
    active=$((qps * 3 / 4))
    traffic=(--active $active --message 512 --bytes 512 --stay $((seconds * 250)))
    ;;
  rings | whisper)
    touch "$dir/silent"
    traffic=(--message 30000 --bytes $((4800000 / connections)) --linger "$dir/silent")
    [[ $kind == rings ]] || traffic+=(--whisper 300)
    ;;
esac
traffic+=(--stop "$dir/stop")
LD_PRELOAD=$shim RCSOCK_STATS=$dir/stats.client "$soak" client "$RDMA_IP" "$port" \
  --connections "$connections" --report "$dir/report" "${traffic[@]}" \
  2>"$dir/log.client" >"$dir/right" &
client=$!
start=$SECONDS
case $kind in
  all)
    until_true "$seconds" "all on rdma" all_promoted
    (($(left) == 0)) || fail "$(left) left their lanes meanwhile"
    ;;
  uniform | pinned | moving) until_true $((seconds + 5)) "the end" gone_by $((start + seconds)) ;;
  rings | whisper)
    # The traffic goes on until all have a lane, however long that takes.
    until_true "$seconds" "all on rdma" all_promoted
    until_true "$seconds" "large rings" large_rings
    touch "$dir/stop"
    until_true "$seconds" "lanes left with large rings" grep -q "left its lane: idle_rings" "$dir/log.client" "$dir/log.server"
    until_true "$seconds" "small rings" all_idle
    [[ $kind == rings ]] || until_true "$seconds" "lanes with small rings" small_again
    echo "pinned: $(pinned $client) $(pinned $server) KiB"
    rm "$dir/silent"
    ;;
esac
took=$((SECONDS - start))
touch "$dir/stop"
wait $client || fail "a byte was wrong, or the end"
wait $server || fail "a byte was wrong at the server, or the end"
python3 - "$dir" "$kind" "$RDMA_DEV" "$connections" "$qps" "$took" <<'END' || fail "see above"
import json, os, sys
dir, kind, device = sys.argv[1:4]
connections, qps, took = map(int, sys.argv[4:])
ends = {}
for end in "client", "server":
    s = json.load(open(f"{dir}/stats.{end}"))
    lanes = s["lanes"]
    moved = {k: v["tx_bytes"] + v["rx_bytes"] for k, v in lanes.items()}
    ends[end] = {
        "share": round(moved["rdma"] / max(1, sum(moved.values())), 3),
        "bytes": sum(moved.values()),
        "promoted": s["promoted"],
        **{k: s[k] for k in ("demotions", "failovers", "evicted", "pinned", "reasons")},
    }
print(json.dumps({"kind": kind, "connections": connections, "qps": qps, "seconds": took, **ends}))
evicted = sum(e["evicted"]["budget"] for e in ends.values())
share = min(e["share"] for e in ends.values())
failed = sum(e["failovers"] for e in ends.values())
wrong = failed > 0 and f"{failed} failovers"
units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
limit = os.environ.get("RCSOCK_MAX_PINNED", "")
if limit:
    limit = int(limit.rstrip("KMG")) * units[limit.lstrip("0123456789")]
    peak = max(e["pinned"]["peak"] for e in ends.values())
    if not 0 < peak <= limit:
        wrong = f"{peak} bytes pinned"
if kind == "all":
    # What is pinned when each has a lane with its smallest rings.
    least = connections * (24 if device.startswith("siw") else 32) << 10
    for name, end in ends.items():
        if end["pinned"]["peak"] < least:
            wrong = f"only {end['pinned']['peak']} bytes pinned at the {name}"
if kind == "uniform":
    if evicted > qps // 4:
        wrong = f"{evicted} evictions"
    # They fill the lanes that there may be.
    for name, end in ends.items():
        if end["promoted"] < qps * 3 // 4:
            wrong = f"{end['promoted']} promotions at the {name}"
# A move costs two seconds or three, whatever its length.
if kind == "moving" and share < (0.5 if took >= 40 else 0.3):
    wrong = f"lane share {share}"
if wrong:
    sys.exit(f"scale {kind}: {wrong}")
END
echo "scale $kind: right"
