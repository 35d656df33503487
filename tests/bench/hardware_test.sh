#!/bin/bash
# usage: hardware_test RUN RDMA_COMPARE
#
# RCSOCK_TEST_DEVICE: what a test is told of the device, and one that is not there.
set -euo pipefail
run=$(realpath "$1") compare=$(realpath "$2")
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/hardware.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
failed=0
# check NAME EXPECTED ACTUAL
check() {
  [[ $3 == "$2" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  failed=1
}

mkdir -p "$tmp/bin" "$tmp/sys/class/infiniband/mlx5_0/device/net"/{ib0,ib1}
echo 0 >"$tmp/sys/class/infiniband/mlx5_0/device/net/ib0/dev_port"
echo 1 >"$tmp/sys/class/infiniband/mlx5_0/device/net/ib1/dev_port"
printf '#!/bin/sh\necho "$LINK"\n' >"$tmp/bin/rdma"
printf '#!/bin/sh\necho "2: $5 inet 192.0.2.7/24 scope global $5"\n' >"$tmp/bin/ip"
chmod +x "$tmp"/bin/*
# told DEVICE PORT LINK: netdev and address, or what is said
told() {
  RCSOCK_TEST_DEVICE=$1 RCSOCK_TEST_PORT=$2 LINK=$3 RCSOCK_TEST_SYSFS=$tmp/sys \
    PATH=$tmp/bin:$PATH "$run" bash -c 'echo "$RDMA_DEV $RDMA_NETDEV $RDMA_IP"' 2>&1 ||
    echo "status $?"
}
check "RoCE" "mlx5_0 eth5 192.0.2.7" \
  "$(told mlx5_0 1 "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth5")"
infiniband="link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 1 sm_lid 1 lmc 0 state ACTIVE"
check "InfiniBand" "mlx5_0 ib0 192.0.2.7" "$(told mlx5_0 1 "$infiniband")"
check "InfiniBand, its second port" "mlx5_0 ib1 192.0.2.7" "$(told mlx5_0 2 "$infiniband")"
check "no network device" "guest: mlx5_0: its port 3 has no network device
status 125" "$(told mlx5_0 3 "$infiniband")"
check "no such device" \
  "guest: RCSOCK_TEST_DEVICE=mlx5_9: no such RDMA device here; there are: mlx5_0
status 125" "$(told mlx5_9 1 "")"

status=0
RCSOCK_TEST_DEVICE=none9 "$compare" --quick --preload "$0" --programs "$tmp" \
  --transports tcp >"$tmp/out" 2>"$tmp/err" || status=$?
check "rdma_compare: status" 1 "$status"
check "rdma_compare: no table" "" "$(<"$tmp/out")"
check "rdma_compare: one line" 1 \
  "$(grep -c '^rdma_compare: RCSOCK_TEST_DEVICE=none9: no such RDMA device here; there are: ' "$tmp/err")"
exit "$failed"
