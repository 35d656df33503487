#!/bin/bash
# usage: doctor_test RCSOCK PRELOAD LIBCUDA
#
# What `rcsock doctor` says of GPUs.
set -euo pipefail
tool=$(realpath "$1")
RCSOCK_PRELOAD=$(realpath "$2")
cuda=$(dirname "$(realpath "$3")")
export RCSOCK_PRELOAD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset LD_PRELOAD RCSOCK_LANES RCSOCK_STATS RCSOCK_LOG
export XDG_CONFIG_HOME=$work/config

# A GPU and an adapter below one bridge, and another adapter far away.
pci=sys/devices/pci0000:16/0000:16:01.0
mkdir -p sys/bus/pci/devices sys/class/infiniband/{mlx5_0,mlx5_1} \
  "$pci"/{0000:17:00.0,0000:18:00.0} sys/devices/pci0000:90/0000:90:01.0
echo 0x10de >$pci/0000:17:00.0/vendor
echo 0x030200 >$pci/0000:17:00.0/class
for at in $pci/0000:17:00.0 $pci/0000:18:00.0; do echo 0 >"$at/numa_node"; done
echo 1 >sys/devices/pci0000:90/0000:90:01.0/numa_node
ln -s "$work/$pci/0000:17:00.0" sys/bus/pci/devices/0000:17:00.0
ln -s "$work/sys/devices/pci0000:90/0000:90:01.0" sys/class/infiniband/mlx5_0/device
ln -s "$work/$pci/0000:18:00.0" sys/class/infiniband/mlx5_1/device
export SYSFS_PATH=$work/sys

failed=0
# has NAME PATTERN
has() {
  grep -qE "$2" out.txt && return
  printf 'FAILED: %s\n' "$1"
  cat out.txt
  failed=1
}
LD_LIBRARY_PATH=$cuda "$tool" doctor >out.txt || true
has "a GPU" '^ok +GPU 0 +Fake GPU at 0000:17:00.0, 16 GiB; the nearest RDMA device is mlx5_1, below one PCI bridge; dma-buf$'
has "its driver" '^note +GPUs +the driver has CUDA 12.2$'
LD_LIBRARY_PATH=$cuda FAKE_CUDA_DMABUF=0 "$tool" doctor >out.txt || true
has "no dma-buf" '^warn +GPU 0 .*; no dma-buf: an RDMA lane copies its bytes$'
has "no dma-buf: the mend" 'mend: .*modprobe nvidia-peermem'
if ! ldconfig -p | grep -q libcuda.so.1; then
  "$tool" doctor >out.txt || true
  has "a GPU without a driver" '^note +GPUs +there is one, but no libcuda.so.1$'
  rm "$pci/0000:17:00.0/vendor"
  "$tool" doctor >out.txt || true
  if grep -q GPU out.txt; then
    echo "FAILED: no GPU"
    failed=1
  fi
fi
exit "$failed"
