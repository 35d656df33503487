#!/bin/bash
# usage: bench_test BARE_MANY BARE_PINGPONG BARE_RING LOOPS MANY ONEWAY PINGPONG
#                   PLAIN_COST PROMOTION SHORT TURNS SOCKETS COUNT_SYSCALLS
#
# Each program runs, in one command and in two, and prints one line of JSON.
# Speed is not looked at.
set -euo pipefail
bare_many=$1 bare_pingpong=$2 bare_ring=$3 loops=$4 many=$5 oneway=$6 pingpong=$7
plain_cost=$8 promotion=$9 short=${10} turns=${11} sockets=${12}
count_syscalls=${13}

# expect KEY COMMAND...: one line of JSON in which KEY is a positive number
expect() {
  local key=$1
  shift
  timeout 60 "$@" | python3 -c '
import json, sys
lines = sys.stdin.read().splitlines()
assert len(lines) == 1, lines
assert json.loads(lines[0])[sys.argv[1]] > 0, lines
print(lines[0])' "$key"
}

free_port() {
  python3 -c '
import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

expect ns "$bare_many" --pairs 100 --iters 10000
expect ns "$bare_pingpong" --iters 10000
expect bytes_per_s "$bare_ring" --seconds 0.05
expect per_s "$loops" --loops 5 --iters 100
expect per_s "$loops" --loops 5 --iters 100 --wait oneshot
expect ns "$many" --connections 50 --iters 2000
expect ns "$many" --connections 50 --active 8 --iters 2000
expect ns "$many" --connections 50 --hot 5 --move 100 --iters 2000
expect ns "$many" --connections 50 --hot 5 --burst 4 --iters 2000
expect direct_ns "$plain_cost" --batches 20 --warm 10
for pattern in pingpong epoll send receive; do
  expect turns "$turns" --pattern $pattern --count 20 --turns 10 --warm 2
done
expect bytes_per_s "$oneway" --size 64 --seconds 0.05
expect bytes_per_s "$oneway" --size 131072 --seconds 0.05
for mode in blocking epoll nonblocking; do
  expect ns "$pingpong" --mode "$mode" --iters 1000
done
expect ns "$pingpong" --size 100000 --iters 100
expect ns "$short" --iters 200
# (Without a lane none is ever found.)
expect never "$promotion" --iters 2 --limit-ms 5

# Two commands.  The client waits until the server listens.
port=$(free_port)
timeout 60 "$pingpong" --role server --port "$port" &
server=$!
expect ns "$pingpong" --role client --port "$port" --iters 1000
wait "$server"

# Two clients that take turns, each with its server.
turn=$(mktemp)
trap 'rm -f "$turn"' EXIT
head -c 4 /dev/zero >"$turn"
timeout 60 "$turns" --role server --port "$port" &
server=$!
port_1=$(free_port)
timeout 60 "$turns" --role server --port "$port_1" &
server_1=$!
expect turns "$turns" --role client --port "$port_1" --turns 10 --warm 2 \
  --file "$turn" --index 1 &
client_1=$!
expect turns "$turns" --role client --port "$port" --turns 10 --warm 2 \
  --file "$turn" --index 0
wait "$client_1"
wait "$server" "$server_1"

# sockets has two commands only, and prints that it listens.
# both KEY OPTIONS...
both() {
  local key=$1
  shift
  timeout 60 "$sockets" --role server --port "$port" "$@" >/dev/null &
  server=$!
  expect "$key" "$sockets" --role client --port "$port" --settle-ms 5 "$@"
  wait "$server"
}
for connections in 1 4; do
  for spin in "" --spin; do
    # shellcheck disable=SC2086  # no word or one
    both us --size 1000 --connections "$connections" $spin
    # shellcheck disable=SC2086
    both MBps --pattern oneway --size 100000 --connections "$connections" $spin
  done
done

# What is counted is exact: one send and one receive for each round trip, at
# both ends; and only a program's own marks are marks (a shell asks for its
# parent as well).
counts=$(mktemp)
trap 'rm -f "$turn" "$counts" "$counts.server"' EXIT
# shellcheck disable=SC2016  # for the inner shell
as_shell=(sh -c 'test $PPID -gt 0; exec "$@"' sh)
timeout 60 "$count_syscalls" "$counts.server" "${as_shell[@]}" \
  "$sockets" --role server --port "$port" --count 1000 >/dev/null &
server=$!
timeout 60 "$count_syscalls" "$counts" "${as_shell[@]}" \
  "$sockets" --role client --port "$port" --count 1000 >/dev/null
wait "$server"
python3 -c '
import json, sys
for path in sys.argv[1:]:
    counts = json.load(open(path))
    calls = counts["calls"]
    assert counts["marks"] == 2, counts
    assert (calls["sendto"], calls["recvfrom"]) == (1000, 1000), counts
' "$counts" "$counts.server"
