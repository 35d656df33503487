#!/bin/bash
# usage: idle_rdma_test IDLE SHIM, in a guest
export PAIR_ADDRESS=$RDMA_IP RCSOCK_LANES=rdma
exec "$@"
