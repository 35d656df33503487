#!/bin/bash
# usage: rdma_calls_test COUNT RDMA_CALLS
#
# The instructions of an RDMA lane for a message: docs/paper.md has them.
set -euo pipefail
times=20
for bytes in 8 64 1024; do
  for mode in post read; do
    n=$("$1" --all "$2" $mode $bytes $times)
    # Twice so many messages: one each way.
    echo "$mode, $bytes bytes: $((n / (2 * times))) instructions a message"
    # Neither nothing, nor the device as well.
    ((n / (2 * times) > 100 && n / (2 * times) < 5000))
  done
done
