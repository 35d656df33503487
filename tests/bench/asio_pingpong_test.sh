#!/bin/bash
# usage: asio_pingpong_test PROGRAM: it runs and prints its line; how fast it is
# is not looked at.
set -euo pipefail
timeout 60 "$1" 8 2000 | tee /dev/stderr |
  grep -Eq '^bytes 8  tcp_us [0-9.]+  rcsock_us [0-9.]+  ratio [0-9.]+$'
