#!/bin/bash
# usage: scale_test RUN rxe|siw SHIM SOAK KIND CONNECTIONS QPS SECONDS
#
# scale.sh, which says what the kinds are, in a guest.  By hand, at full size:
#   tests/guest/scale_test.sh tests/guest/run rxe SHIM SOAK all 1000 1024 120
#   tests/guest/scale_test.sh tests/guest/run rxe SHIM SOAK moving 10000 256 160
set -euo pipefail
run=$1 device=$2
shim=$(readlink -f "$3")
soak=$(readlink -f "$4")
shift 4
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
exec "$run" -d "$device" -m $((512 + $2 / 3)) -t $((100 + 3 * $4)) \
  bash "$here/scale.sh" "$shim" "$soak" "$@"
