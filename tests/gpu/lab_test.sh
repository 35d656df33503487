#!/bin/bash
# usage: with_device ... lab_test.sh RCSOCK WANTED
#
# The doctor's lab over memory of a GPU, on the device of tests/device. WANTED:
# "verified", "refused" or "changed".
set -uo pipefail
tool=$1
wanted=$2
LD_LIBRARY_PATH=$(dirname "$FAKE_CUDA")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
[[ $wanted == refused ]] && export FAKE_CUDA_DMABUF=0
[[ $wanted == changed ]] && export FAKE_CUDA_SPOILS=1
told=$("$tool" doctor-probe gpu-verbs "$RDMA_IP" 0)
echo "$told"
case $wanted in
  verified)
    grep -q '"failed":""' <<<"$told" &&
      grep -qE '"good":"SEND/RECV, WRITE, READ(, WRITE_WITH_IMM)?"' <<<"$told" &&
      { grep -q 'WRITE_WITH_IMM"' <<<"$told" || grep -q '"iwarp":true' <<<"$told"; }
    ;;
  refused)
    grep -q '"refused":true' <<<"$told" && ! grep -q '"good"' <<<"$told"
    ;;
  changed)
    grep -q '"failed":"SEND/RECV: the bytes arrived changed"' <<<"$told"
    ;;
esac || exit 1
# GPU 7 is not there.
"$tool" doctor-probe gpu-verbs "$RDMA_IP" 7 | grep -q '"memory":"cuDeviceGet: CUDA error 101"'
