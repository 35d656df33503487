#!/bin/bash
# usage: with_device ... pair_test.sh BOTH SHIM MODE PROGRAM...
#
# What the programs of tests/posix print on the device must be what they print
# over TCP.
set -uo pipefail
both=$1 shim=$2 mode=$3
shift 3
key=$(mktemp)
out=$(mktemp)
trap 'rm -f "$key" "$out"' EXIT
# Without a key an end that only receives stays on TCP.
printf 'a key that both ends have: %032d' 0 >"$key"
export PAIR_ADDRESS=$RDMA_IP RCSOCK_LANES=rdma RCSOCK_KEY_FILE=$key
export PAIR_SCALE=10
# nested: completions of its own make an epoll descriptor look readable to
# poll() once more (docs/compatibility.md).  killed_...,
# kill_rounds: what the device has not taken dies with its process.
# exit_stopped_peer, fork_stopped_peers: a process that is stopped stops this
# device, too.  exit_of_...: /proc counts its threads.  The others are about
# loopback.
skip=nested,killed_behind_a_demotion,killed_behind_a_full_tcp,kill_rounds
skip+=,killed_in_the_switch
skip+=,exit_stopped_peer,fork_stopped_peers,exit_of_thread,exit_of_first_thread
export PAIR_SKIP=${PAIR_SKIP:+$PAIR_SKIP,}$skip,zerocopy_ipv6,zerocopy_mapped
failed=0
count() { sed -n "s/^\([0-9]*\) $1\$/\1/p" "$out"; }
for program in "$@"; do
  begun=$SECONDS
  echo "== $program, $mode"
  "$both" "$program" "$shim" "$mode" | tee "$out"
  if ((PIPESTATUS[0] != 0)); then
    echo "FAILED: $program, $mode"
    failed=1
  fi
  # A case has a connection or more, and each has two ends: of every eight of
  # these three had a lane, or it is TCP that was tried here.
  # (Of a few, one that is slow counts for much.)
  if ((4 * $(count promotions) + 1 < 3 * $(count cases))); then
    echo "FAILED: $program, $mode: too few had a lane"
    failed=1
  fi
  echo "$((SECONDS - begun)) s"
done
exit "$failed"
