#!/bin/bash
# usage: rdma_test BOTH SHIM MODE PROGRAM...
#
# In a guest: what the programs print over its device must be what they print
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
# A guest is slow.
export PAIR_SCALE=25
# nested: completions of its own make an epoll descriptor look readable to
# poll() once more (docs/compatibility.md).  killed_behind_...: what the
# device has not taken dies with its process.  The two before it: children of
# fork that connect (no RDMA for these).  The others are about loopback.
export PAIR_SKIP=nested,connect_to_no_address,zerocopy_ipv6,zerocopy_mapped,first_thread_of_child_ends,fork_stopped_peers,killed_behind_a_demotion,killed_behind_a_full_tcp
failed=0
count() { sed -n "s/^\([0-9]*\) $1\$/\1/p" "$out"; }
for program in "$@"; do
  for try in 1 2 3; do
    echo "== $program, $mode, try $try"
    "$both" "$program" "$shim" "$mode" | tee "$out" || continue
    # A case has a connection or more, and each has two ends: of every eight of
    # these three had a lane, or it is TCP that was tried here.
    if ((4 * $(count promotions) < 3 * $(count cases))); then
      echo "TOO FEW had a lane"
      continue
    fi
    ((try == 1)) || echo "NOT AT ONCE: $program, $mode: passed in try $try"
    continue 2
  done
  echo "FAILED: $program, $mode, in three tries"
  failed=1
done
exit "$failed"
