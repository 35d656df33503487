#!/bin/bash
# usage: rdmacm_utils_test LIBRCSOCK_RSOCKET LIBRCSOCK shm|rdma|tcp
#
# Debian's own rsocket programs (rdmacm-utils), as they are, with our library in
# front of librdmacm: here over shared memory, in a guest over RDMA.
set -uo pipefail
rsocket=$(readlink -f "$1")
library=$(readlink -f "$2")
lane=$3
work=$(mktemp -d)
servers=()
trap 'kill "${servers[@]}" 2>/dev/null; rm -rf "$work"' EXIT
export RCSOCK_LANES=$lane
[[ $lane != tcp ]] && export RCSOCK_PROMOTE_OPS=1
address=${RDMA_IP:-127.0.0.1}
export LD_LIBRARY_PATH=$(dirname "$library")
failed=0

fail() {
  echo "FAILED $*"
  tail -5 "$work"/out.* 2>/dev/null
  failed=1
}

ours() { LD_PRELOAD=$rsocket RCSOCK_STATS=$work/stats.%p exec "$@"; }

free_port() {
  python3 -c '
import socket
s = socket.socket()
s.bind(("", 0))
print(s.getsockname()[1])'
}

# serve tcp|udp COMMAND...: starts a server on $port and waits for it
serve() {
  local table=$1 hex
  shift
  hex=$(printf ':%04X ' "$port")
  ours "$@" >"$work/out.server" 2>&1 &
  servers+=($!)
  for ((i = 0; i < 300; ++i)); do
    cat "/proc/net/$table" "/proc/net/${table}6" 2>/dev/null |
      awk '{print $2 " "}' | grep "$hex" >/dev/null && return
    sleep 0.05
  done
  fail "no server: $*"
}

# pair NAME PROGRAM OPTIONS...: a server, a client; both must end well
pair() {
  local name=$1 program=$2 server
  shift 2
  port=$(free_port)
  serve tcp "$program" -p "$port" "$@"
  server=${servers[-1]}
  (ours timeout 60 "$program" -p "$port" -s "$address" "$@") \
    >"$work/out.client" 2>&1 || fail "$name: client $?"
  grep -q '[0-9]s ' "$work/out.client" || fail "$name: no figure"
  wait "$server" || fail "$name: server $?"
}

# lane_bytes: what the processes since the last call have sent over the lane
lane_bytes() {
  cat "$work"/stats.* | python3 -c '
import json, sys
print(sum(lane["tx_bytes"] for line in sys.stdin
          for name, lane in json.loads(line)["lanes"].items()
          if name == sys.argv[1]))' "$lane"
  rm -f "$work"/stats.*
}

# promoted NAME ITERATIONS PROGRAM OPTIONS...: a pair, again until it has been on a
# lane: a short run may be over before there is one, so each is longer
promoted() {
  local bytes iterations=$2 try
  for try in 1 2 3 4 5; do
    pair "$1" "${@:3}" -I "$iterations"
    bytes=$(lane_bytes)
    echo "$1: $bytes bytes over $lane"
    [[ $bytes -gt 0 ]] && return
    ((iterations *= 3))
  done
  fail "$1: nothing over $lane"
}

promoted "rstream, blocking" 500 rstream -S 1000 -C 2 -T b -T v
promoted "rstream, polling" 20 rstream -S 20000 -C 10 -T a -T v
promoted "rstream, large" 4 rstream -S 1000000 -C 4 -T b -T v

pair "riostream" riostream -S 64 -I 200 -C 1 -T b -T v
pair "riostream, large" riostream -S 300000 -I 4 -C 1 -T b -T v
pair "riostream, polling" riostream -S 4096 -I 20 -C 4 -T a
rm -f "$work"/stats.*

# The client sends the file by one call, in whose middle it moves to the lane.  A
# lane may come late, so each file is longer than the one before.
length=64000000
copied=0
for _ in 1 2 3 4 5; do
  head -c "$length" /dev/urandom >"$work/from"
  port=$(free_port)
  serve tcp rcopy -p "$port"
  (ours timeout 60 rcopy "$work/from" "$address:$work/to" -p "$port") \
    >"$work/out.client" 2>&1 || fail "rcopy: $?"
  cmp "$work/from" "$work/to" || fail "rcopy: another file"
  kill "${servers[-1]}"
  wait "${servers[-1]}" 2>/dev/null
  copied=$(lane_bytes)
  echo "rcopy: $copied bytes over $lane"
  rm -f "$work/to"
  [[ $copied -gt 32000000 ]] && break
  ((length = length * 3 / 2))
done
[[ $copied -gt 32000000 ]] || fail "rcopy: $copied bytes over $lane"

port=$(free_port)
serve udp udpong -p "$port" -b "$address"
(ours timeout 60 udpong -p "$port" -s "$address" -C 200 -S 100 -T e) \
  >"$work/out.client" 2>&1 || fail "udpong: $?"
grep -q '[0-9]s ' "$work/out.client" || fail "udpong: no figure"
kill "${servers[-1]}"
wait "${servers[-1]}" 2>/dev/null

exit "$failed"
