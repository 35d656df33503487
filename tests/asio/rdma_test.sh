#!/bin/bash
# usage: rdma_test PROGRAM FILTER: in a guest, with RDMA lanes alone; the filter must
# match something
set -euo pipefail
export RCSOCK_LANES=rdma
found=$("$1" --gtest_filter="$2" --gtest_list_tests | grep -c '^  ' || true)
((found > 0)) || {
  echo "FAILED: no test is called $2"
  exit 1
}
exec "$1" --gtest_filter="$2"
