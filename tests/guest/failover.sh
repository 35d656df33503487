#!/bin/bash
# usage: failover.sh server|client SHIM SOAK EVENT
#
# The two ends of a failover test, for tests/guest/pair (or, with `both`, inside
# one guest).  Traffic whose every byte is known runs on an rdma lane; then EVENT:
#   cut      the link drops all RDMA traffic, while TCP lives
#   device   the client's RDMA device is deleted
#   peer     the server's RDMA device is deleted
# The stream must go on over TCP; when all is mended it must promote again; no
# byte may be lost, doubled or out of place (soak checks each).
set -euo pipefail
role=$1 shim=$2 soak=$3 event=$4
port=7990
dir=$(mktemp -d)
export RCSOCK_LANES=rdma RCSOCK_PROMOTE_OPS=4 RCSOCK_LOG=1

fail() {
  echo "failover $event: $*" >&2
  tail -n 30 "$dir"/log >&2 || true
  exit 1
}
# until_true WHAT COMMAND...: a safety net of 60 s.
until_true() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@"; do
    ((SECONDS < end)) || fail "never: $what"
    sleep 0.05
  done
}
bytes() { sed -n 's/^bytes //p' "$dir/report" 2>/dev/null || true; }
beyond() { (($(bytes) + 0 > $1)) 2>/dev/null; }
promoted() { (($(grep -c 'promoted to rdma' "$dir/log") >= $1)); }
left() { (($(grep -c 'left its lane' "$dir/log") >= $1)); }

serve() {
  LD_PRELOAD=$shim RCSOCK_STATS=$dir/stats "$soak" server $port --connections 4 \
    2>"$dir/log"
}

case $role in
  server)
    # Does to its device what the client asks, until it has its answer.
    (
      set +e
      case $event in
        cut)
          guestctl await delete 300 >/dev/null && guestctl cut rdma-in && guestctl tell deleted
          guestctl await restore 300 >/dev/null && guestctl mend && guestctl tell restored
          exit
          ;;
      esac
      guestctl await delete 300 >/dev/null && guestctl device del && guestctl tell deleted
      guestctl await restore 300 >/dev/null && guestctl device add && guestctl tell restored
    ) &
    serve || fail "the server failed"
    exit 0
    ;;
  client | both) ;;
  *) exit 2 ;;
esac

address=${PEER_IP:-$RDMA_IP}
if [[ $role == both ]]; then
  (serve) &
  guestctl listening $port
fi
LD_PRELOAD=$shim RCSOCK_STATS=$dir/stats "$soak" client "$address" $port \
  --connections 4 --message 20000 --bytes 400000 --report "$dir/report" \
  --stop "$dir/stop" 2>"$dir/log" &
client=$!
until_true "four streams on rdma" promoted 4
before=$(bytes)
until_true "traffic on the lane" beyond $((before + 1000000))

case $event in
  cut)
    guestctl cut rdma-in
    guestctl tell delete
    guestctl await deleted >/dev/null
    ;;
  device) guestctl device del ;;
  peer)
    guestctl tell delete
    guestctl await deleted >/dev/null
    ;;
esac
until_true "four streams back on TCP" left 4
before=$(bytes)
until_true "traffic without the device" beyond $((before + 1000000))
case $event in
  cut)
    guestctl mend
    guestctl tell restore
    guestctl await restored >/dev/null
    ;;
  device) guestctl device add ;;
  peer)
    guestctl tell restore
    guestctl await restored >/dev/null
    ;;
esac
until_true "four streams on rdma again" promoted 8
before=$(bytes)
until_true "traffic on the new lane" beyond $((before + 1000000))
touch "$dir/stop"
wait $client || fail "a byte was wrong, or the end"
python3 - "$dir/stats" <<'END' || fail "statistics"
import json, sys
s = json.load(open(sys.argv[1]))
print(json.dumps({k: s[k] for k in ("promoted", "demotions", "failovers", "lanes")}))
sys.exit(not (s["lanes"]["rdma"]["tx_bytes"] > 0 and s["failovers"] + s["demotions"] >= 4))
END
echo "failover $event: right"
