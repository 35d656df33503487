#!/bin/bash
# usage: sigpipe_rdma_test RDMA_TEST BOTH SHIM LIBRARY PROGRAM...
#
# In a guest: each PROGRAM as over TCP (RDMA_TEST), although LIBRARY has a
# SIGPIPE raised in every call that posts; and it has.
set -uo pipefail
test=$1 both=$2 shim=$3 library=$4
shift 4
RAISED=$(mktemp)
export RAISED
trap 'rm -f "$RAISED"' EXIT
"$test" "$both" "$shim:$library" lane "$@" || exit 1
raised=$(stat -c %s "$RAISED")
echo "raised in $raised processes"
((raised >= 2 * $#)) || { echo "FAILED: fewer than 2 of each program"; exit 1; }
