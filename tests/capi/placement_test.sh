#!/bin/bash
# usage: placement_test PROGRAM: in a guest, on an RDMA lane.
set -euo pipefail
export RCSOCK_LANES=rdma RCSOCK_PROMOTE_OPS=1
# A lane may come late on a busy machine; then the program does without.
for try in 1 2 3; do
  said=$("$1" "$RDMA_IP")
  echo "$try: $said"
  [[ $said == "placed by the device" ]] && exit 0
done
exit 1
