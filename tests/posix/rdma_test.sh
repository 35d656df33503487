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
# A guest is slow, and the host's other work makes it slower.
export PAIR_SCALE=10 PAIR_PATIENCE=${PAIR_PATIENCE-4}
# nested: completions of its own make an epoll descriptor look readable to
# poll() once more (docs/compatibility.md).  killed_behind_...: what the
# device has not taken dies with its process.  The others are about loopback.
export PAIR_SKIP=nested,zerocopy_ipv6,zerocopy_mapped,fork_stopped_peers,killed_behind_a_demotion,killed_behind_a_full_tcp
failed=0
count() { sed -n "s/^\([0-9]*\) $1\$/\1/p" "$out"; }
# run PROGRAM [CASE]
run() { "$both" "$1" "$shim" "$mode" ${2:+"$2"} | tee "$out"; }
# A case has a connection or more, and each has two ends: of every eight of these
# three had a lane, or it is TCP that was tried here.
enough() {
  ((4 * $(count promotions) >= 3 * $(count cases))) && return
  echo "TOO FEW had a lane"
  return 1
}
# Once more, of a program only the cases that were not as over TCP.
again() {
  local program=$1 name try
  if ! grep -q '^OTHERWISE: .' "$out"; then
    for try in 2 3; do
      echo "== $program, $mode, try $try"
      run "$program" && enough && return
    done
    return 1
  fi
  for name in $(sed -n 's/^OTHERWISE: //p' "$out"); do
    for try in 2 3; do
      echo "== $program, $mode, $name, try $try"
      run "$program" "$name" && continue 2
    done
    return 1
  done
}
for program in "$@"; do
  begun=$SECONDS
  echo "== $program, $mode"
  if ! { run "$program" && enough; }; then
    if again "$program"; then
      echo "NOT AT ONCE: $program, $mode"
    else
      echo "FAILED: $program, $mode, in three tries"
      failed=1
    fi
  fi
  echo "$((SECONDS - begun)) s"
done
exit "$failed"
