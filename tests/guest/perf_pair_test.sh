#!/bin/bash
# usage: perf_pair_test PAIR rxe|siw RCSOCK PRELOAD
#
# `rcsock perf` between two guests: the RDMA lane, raw verbs in every mode, and a
# comparison.  Speed is not looked at.
set -euo pipefail
pair=$1 device=$2
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
RCSOCK_TOOL=$(realpath "$3")
RCSOCK_PRELOAD=$(realpath "$4")
export RCSOCK_TOOL RCSOCK_PRELOAD
exec "$pair" -d "$device" -t 240 -p 18592 \
  "$RCSOCK_TOOL" perf -s -- bash "$here/perf_pair_client.sh"
