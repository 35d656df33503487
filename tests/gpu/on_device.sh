#!/bin/bash
# usage: with_device ... on_device.sh PROGRAM
#
# Runs a test whose streams have no lane but the device's.
set -uo pipefail
key=$(mktemp)
trap 'rm -f "$key"' EXIT
# Without a key an end that only receives stays on TCP.
printf 'a key that both ends have: %032d' 0 >"$key"
export RCSOCK_LANES=rdma RCSOCK_KEY_FILE=$key
"$@"
