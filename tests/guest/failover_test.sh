#!/bin/bash
# usage: failover_test PAIR rxe|siw EVENT SHIM SOAK
#
# Runs the two ends of failover.sh, which says what the events are, in two guests.
set -euo pipefail
pair=$1 device=$2 event=$3
shim=$(readlink -f "$4")
soak=$(readlink -f "$5")
ends=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/failover.sh
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
exec "$pair" -d "$device" -t 200 -p 7990 \
  bash "$ends" server "$shim" "$soak" "$event" -- \
  bash "$ends" client "$shim" "$soak" "$event"
