#!/bin/bash
# usage: rdma_test BREAKS [--fails CASE] DIFFERENTIAL AGENT SHIM OPTION...
#
# In a guest: cases of the generator whose connections go over its device, and
# whose queue pairs BREAKS puts into error at the step `fail`.  With --fails
# that must have made lanes die; CASE comes first, since on a busy host there
# may be few others.
set -uo pipefail
breaks=$(readlink -f "$1")
shift
fails=
if [[ $1 == --fails ]]; then
  fails=$2
  shift 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without a key an end that only receives stays on TCP.
printf 'a key that both ends have: %032d' 0 >"$work/key"
export PAIR_ADDRESS=$RDMA_IP RCSOCK_LANES=rdma RCSOCK_KEY_FILE=$work/key
export RCSOCK_STATS=$work/stats.%p DIFFERENTIAL_BEHIND=$breaks
status=0
[[ -z $fails ]] || "$1" "$2" "$3" --replay "$fails" || status=$?
"$@" || status=$?
read -r promoted failovers < <(cat "$work"/stats.[0-9]* 2>/dev/null | python3 -c '
import json, sys
counts = [json.loads(line) for line in sys.stdin]
print(*(sum(count[what] for count in counts)
        for what in ("promoted", "failovers")))')
echo "$promoted promotions, $failovers failovers"
if [[ ${promoted:-0} == 0 ]]; then
  echo "FAILED: nothing was on a lane"
  exit 1
fi
if [[ -n $fails && ${failovers:-0} == 0 ]]; then
  echo "FAILED: no lane has died"
  exit 1
fi
exit "$status"
