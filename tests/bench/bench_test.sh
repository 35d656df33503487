#!/bin/bash
# usage: bench_test BARE_PINGPONG BARE_RING MANY ONEWAY PINGPONG
#
# Each program runs, in one command and in two, and prints one line of JSON.
# Speed is not looked at.
set -euo pipefail
bare_pingpong=$1 bare_ring=$2 many=$3 oneway=$4 pingpong=$5

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

expect ns "$bare_pingpong" --iters 10000
expect bytes_per_s "$bare_ring" --seconds 0.05
expect ns "$many" --connections 50 --iters 2000
expect ns "$many" --connections 50 --active 8 --iters 2000
expect bytes_per_s "$oneway" --size 64 --seconds 0.05
expect bytes_per_s "$oneway" --size 131072 --seconds 0.05
for mode in blocking epoll nonblocking; do
  expect ns "$pingpong" --mode "$mode" --iters 1000
done
expect ns "$pingpong" --size 100000 --iters 100

# Two commands.  The client waits until the server listens.
port=$(python3 -c '
import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
timeout 60 "$pingpong" --role server --port "$port" &
server=$!
expect ns "$pingpong" --role client --port "$port" --iters 1000
wait "$server"
