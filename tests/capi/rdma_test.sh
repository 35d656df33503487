#!/bin/bash
# usage: rdma_test PROGRAM FILTER...: in a guest, with RDMA lanes alone; a process
# for each of the filters.
set -euo pipefail
export RCSOCK_LANES=rdma RCSOCK_PROMOTE_OPS=1
program=$1
shift
for filter; do
  "$program" --gtest_filter="$filter"
done
