#!/bin/bash
# usage: rdma_test PROGRAM FILTER...: in a guest, with RDMA lanes alone; a process
# for each of the filters, which must match something.
set -euo pipefail
export RCSOCK_LANES=rdma RCSOCK_PROMOTE_OPS=1
program=$1
shift
for filter; do
  found=$("$program" --gtest_filter="$filter" --gtest_list_tests | grep -c '^  ' || true)
  ((found > 0)) || {
    echo "FAILED: no test is called $filter"
    exit 1
  }
  "$program" --gtest_filter="$filter"
done
