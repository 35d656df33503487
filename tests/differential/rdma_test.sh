#!/bin/bash
# usage: rdma_test DIFFERENTIAL AGENT SHIM OPTION...
#
# In a guest: cases of the generator whose connections go over its device.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without a key an end that only receives stays on TCP.
printf 'a key that both ends have: %032d' 0 >"$work/key"
export PAIR_ADDRESS=$RDMA_IP RCSOCK_LANES=rdma RCSOCK_KEY_FILE=$work/key
export RCSOCK_STATS=$work/stats.%p
status=0
"$@" || status=$?
promoted=$(cat "$work"/stats.[0-9]* 2>/dev/null | python3 -c '
import json, sys
print(sum(json.loads(line)["promoted"] for line in sys.stdin))')
echo "$promoted promotions"
if [[ ${promoted:-0} == 0 ]]; then
  echo "FAILED: nothing was on a lane"
  exit 1
fi
exit "$status"
