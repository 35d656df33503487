#!/bin/bash
# usage, in a guest: verbs_test VERBS
#
# Both patterns run over the device, asleep, over one connection and several, and
# print one line of JSON each.  Speed is not looked at.
set -euo pipefail
verbs=$1
port=7100
host=$RDMA_IP
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# pattern KEY OPTIONS...
pattern() {
  local key=$1
  shift
  port=$((port + 1))
  : >"$tmp/server"
  "$verbs" --role server --host "$host" --port "$port" --limit 30 "$@" \
    >"$tmp/server" &
  local server=$!
  until [[ -s $tmp/server ]]; do kill -0 "$server" && sleep 0.02; done
  "$verbs" --role client --host "$host" --port "$port" --limit 30 "$@" |
    python3 -c '
import json, sys
lines = sys.stdin.read().splitlines()
assert len(lines) == 1, lines
assert json.loads(lines[0])[sys.argv[1]] > 0, lines
print(lines[0])' "$key"
  wait "$server"
}

for connections in 1 3; do
  for size in 8 1000 300000; do
    pattern us --size "$size" --connections "$connections" --count 300
    pattern MBps --pattern oneway --size "$size" --connections "$connections" \
      --count 300
    pattern us --copy --size "$size" --connections "$connections" --count 300
    pattern MBps --copy --pattern oneway --size "$size" \
      --connections "$connections" --count 300
  done
done
