#!/bin/bash
# usage: doctor_test PAIR rxe|siw RCSOCK PRELOAD LIBCUDA
#
# `rcsock doctor` with a device: its verbs are tried, the lane to another host
# opens; and without RDMA's packets, or the device, the reason is named.
set -euo pipefail
pair=$1 device=$2
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
RCSOCK_TOOL=$(realpath "$3")
RCSOCK_PRELOAD=$(realpath "$4")
FAKE_CUDA_DIR=$(dirname "$(realpath "$5")")
export RCSOCK_TOOL RCSOCK_PRELOAD FAKE_CUDA_DIR
export PASS_ENV="${PASS_ENV:+$PASS_ENV }FAKE_CUDA_DIR"
exec "$pair" -d "$device" -t 240 -p 18593 \
  "$RCSOCK_TOOL" doctor --listen -- bash "$here/doctor_client.sh"
