#!/bin/bash
# usage: open_loop_test.sh OPEN_LOOP PRELOAD
#
# A service at a low rate sleeps: its threads spin for no longer than what their
# messages have saved.  With RCSOCK_PROFILE=latency they spin for several times
# as long.
set -euo pipefail

program=$1
preload=$(readlink -f "$2")
# shellcheck source=tests/bench/two_ends.sh
source tests/bench/two_ends.sh

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
    exec "$program" --role server --port "$port" "${options[@]}"
  ) &
  server=$!
  under "$profile" client "$program" --port "$port" --connections 4 --rate 2000 \
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
echo PASS
