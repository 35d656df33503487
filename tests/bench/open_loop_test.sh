#!/bin/bash
# usage: open_loop_test.sh OPEN_LOOP PRELOAD
#
# A service at a low rate sleeps: its threads spin for no longer than what their
# messages have saved.  With RCSOCK_PROFILE=latency they spin for several times
# as long.
#
# Connections that a child of the server uses leave their lanes few at a time, so
# that none stands still for the others.
#
# A client in a closed loop needs no more memory for more requests.  Its waits for
# memory would count as the server's.
set -euo pipefail

program=$1
preload=$(readlink -f "$2")
# shellcheck source=tests/bench/two_ends.sh
source tests/bench/two_ends.sh

log=0
rate=2000
connections=4
under() { # PROFILE NAME COMMAND...
  LD_PRELOAD=$preload RCSOCK_PROFILE=$1 RCSOCK_STATS=$tmp/$2.json "${@:3}"
}
run() { # PROFILE [SERVER'S OPTIONS [-- CLIENT'S OPTIONS]]
  local port profile=$1 options=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  port=$(free_port)
  rm -f "$tmp"/*.json
  # Not by `under`: $! is to be the server, and not a shell that waits for it.
  (
    export LD_PRELOAD=$preload RCSOCK_PROFILE=$profile RCSOCK_STATS=$tmp/server.json
    export RCSOCK_LOG=$log RCSOCK_LOG_FILE=$tmp/server.%p.log
    exec "$program" --role server --port "$port" "${options[@]}"
  ) &
  server=$!
  served=$server
  under "$profile" client "$program" --port "$port" --connections "$connections" --rate "$rate" \
    --seconds 1 --warm-up 0 "${@:2}" >"$tmp/out"
  local status=0 expected=0
  # With --life the server does not end by itself.
  if [[ " ${options[*]} " == *" --life "* ]]; then
    kill "$server"
    expected=143
  fi
  wait "$server" || status=$?
  server=
  ((status == expected)) || fail "the server's status is $status"
}
of() { # NAME KEY of "spun_us"
  sed -E "s/.*\"spun_us\": \{[^}]*\"$2\": ([0-9]+).*/\1/" "$tmp/$1.json"
}
fail() {
  echo "FAIL: $*" >&2
  cat "$tmp/out" "$tmp"/*.json >&2
  exit 1
}

# On a machine that stands still for a while a few are refused.
few_refused() {
  local refused
  refused=$(sed -E 's/.*"refused": ([0-9]+),.*/\1/' "$tmp/out")
  ((refused < 200)) || fail "requests were refused"
}
cpus=$(nproc --all)
run balanced
few_refused
for end in server client; do
  # Some 2,130 requests, 13 us each at most, and what two threads begin with.
  all=$(of "$end" all)
  ((all <= 2130 * 13 + 1000)) || fail "the $end spun for $all us"
done
run efficient
for end in server client; do
  all=$(of "$end" all)
  ((all == 0)) || fail "efficient: the $end spun for $all us"
done
run latency
all=$(of server all)
((cpus == 1 || all > 0)) || fail "latency: the server has not spun"
# Connections that end and are made anew, and a server that makes children.
run balanced --life 50 -- --life 50
few_refused
grep -q '"lives": [1-9][0-9]' "$tmp/out" || fail "connections have not ended"
run balanced --fork-every 0.2
few_refused
grep -q '"lives": 0}' "$tmp/out" || fail "beside a server that forks"
# Pinned in the midst of their lives.
run balanced --life 50 -- --life 50 --pin
grep -q '"lives": [1-9][0-9]' "$tmp/out" || fail "pinned connections have not ended"
grep -q '"pinned_option": [1-9]' "$tmp/client.json" || fail "nothing was pinned"
# Beside connections that the server reads too seldom.
run balanced -- --greedy 2
few_refused

rate=0
run balanced
python3 - "$tmp/out" <<'END' || fail "the client has waited for memory"
import json
import sys

one = json.load(open(sys.argv[1]))
# All connections have their lanes by then.  A list of latencies would need a page
# for each 512.
most = 30 + one["done"] / 4000
if one["client_faults"] > most:
    sys.exit(f"{one['client_faults']} faults for {one['done']} requests")
END

log=2 rate=2000 connections=64
run balanced --fork-every 0.4 --child-uses
python3 - "$tmp/server.$served.log" <<'END' || fail "too many leave their lanes at once"
import re
import sys

# Four may be on their way, and four more if none has begun for 2 ms.  A line of
# the log may be late, so this asks for less.
most, late = 16, 0.001
under_way, begun, began = set(), 0, 0.0
for line in open(sys.argv[1]):
    time, fd, what = re.match(
        r"rcsock\[\d+\] ([\d.]+): (?:fd (\d+): )?(.*)", line).groups()
    if what == "left its lane: pinned_fork":
        if float(time) - began > late:
            under_way.clear()
        under_way.add(fd)
        began = float(time)
        begun += 1
        if len(under_way) > most:
            sys.exit(f"{len(under_way)} at once, {begun} in all")
    elif re.search(r"^changes .*, tx 0 rx 0,", what):
        under_way.discard(fd)
if begun < 64:
    sys.exit(f"only {begun} have left")
END
echo PASS
