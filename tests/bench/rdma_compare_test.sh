#!/bin/bash
# usage: rdma_compare_test RDMA_COMPARE PRELOAD SOCKETS rxe|siw
#
# rdma_compare finishes, has a figure for each transport that must work, and
# rcsock's bytes went over its RDMA lane.  Speed is not looked at.
set -euo pipefail
compare=$1 preload=$2 programs=$(dirname "$3") device=$4
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
json=$(mktemp)
trap 'rm -f "$json"' EXIT

# (Of iWARP less: the same tool, and each figure takes seconds.)
connections=(1 3)
[[ $device == rxe ]] || connections=(3)
"$compare" --devices "$device" --hosts 1 --sizes 64 65536 \
  --connections "${connections[@]}" \
  --repetitions 1 --seconds 0.05 --no-perftest --transports tcp verbs rcsock \
  --preload "$preload" --programs "$programs" --json "$json"
python3 - "$json" "${#connections[@]}" <<'END'
import json
import sys

rows = json.load(open(sys.argv[1]))["rows"]
kinds = {(r["metric"], r["size"], r["connections"]) for r in rows}
assert len(kinds) == 3 * 2 * int(sys.argv[2]) + 2, sorted(kinds)
for row in rows:
    for transport in "tcp", "verbs", "rcsock":
        assert row[transport] and row[transport] > 0, (transport, row)
    assert row["lane_share"] > 0.95, row
END
