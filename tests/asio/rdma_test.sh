#!/bin/bash
# usage: rdma_test PROGRAM ARGUMENTS...: in a guest, with RDMA lanes alone
set -euo pipefail
export RCSOCK_LANES=rdma
exec "$@"
