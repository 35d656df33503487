#!/bin/bash
# usage: breaks_rdma_test BREAKS SHIM LIBRARY
#
# In a guest: BREAKS with lanes whose queue pairs LIBRARY puts into error, as over
# TCP; and they were broken, and left by that.
set -uo pipefail
program=$1 shim=$(readlink -f "$2") library=$(readlink -f "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PAIR_ADDRESS=$RDMA_IP
"$program" >"$work/plain" || exit 1
RCSOCK_LANES=rdma RCSOCK_PROMOTE_OPS=1 RCSOCK_LOG=1 PAIR_WARM=lane RCSOCK_STATS=$work/stats.%p \
  LD_PRELOAD=$shim:$library "$program" >"$work/shim" 2>"$work/err"
status=$?
failed=0
[[ $status == 0 ]] || failed=1
diff -u --label tcp --label rcsock "$work/plain" "$work/shim" || failed=1
broken=$(grep -c '^broken: [1-9]' "$work/err")
# (The end that hears of it first may ask the other to leave as well.)
read -r left failovers < <(cat "$work"/stats.[0-9]* | python3 -c '
import json, sys
counts = [json.loads(line) for line in sys.stdin]
failovers = sum(count["failovers"] for count in counts)
print(failovers + sum(count["demotions"] for count in counts), failovers)')
starved=$(grep -c 'left its lane: starved$' "$work/err")
echo "broken $broken times, lanes left: $left, of these failovers: $failovers, starved: $starved"
# By both ends, each time.  One of them has no other reason, or its sender had no
# credit for so long, on a busy machine, that it left before the device told of
# the error.
if ((broken != 2 || left < 4 || failovers < 1 || failovers + starved < 2)); then
  echo "FAILED: not 2 times, fewer than 4, or fewer than 2 of these by an error"
  failed=1
fi
((failed == 0)) || tail -n 30 "$work/err"
exit "$failed"
