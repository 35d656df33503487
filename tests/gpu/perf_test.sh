#!/bin/bash
# usage: perf_test RCSOCK PRELOAD LIBCUDA
#
# `rcsock perf --memory gpu`, with rcsock and without.
set -euo pipefail
tool=$(realpath "$1")
RCSOCK_PRELOAD=$(realpath "$2")
LD_LIBRARY_PATH=$(dirname "$(realpath "$3")")
export RCSOCK_PRELOAD LD_LIBRARY_PATH
work=$(mktemp -d)
cd "$work"
unset LD_PRELOAD RCSOCK_LANES RCSOCK_STATS RCSOCK_LOG
export XDG_CONFIG_HOME=$work/config
port=$((20000 + $$ % 5000))
"$tool" perf -s -p "$port" >server.txt 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
for ((i = 0; i < 100; i++)); do
  "$tool" perf -c 127.0.0.1 -p "$port" -t 0.1 --transport tcp >/dev/null 2>&1 && break
  sleep 0.1
done
failed=0
for way in "" --reverse --bidir; do
  # shellcheck disable=SC2086  # an option, or none
  if ! "$tool" perf -c 127.0.0.1 -p "$port" -t 0.3 -l 1M --memory gpu:0 $way \
    --compare --rounds 1 --transport tcp,shm >out.txt 2>&1 ||
    ! grep -q '^stream .*, memory of GPU 0$' out.txt ||
    ! grep -qE '^  GPU bytes: (passed .*)?rings [0-9.]+%' out.txt ||
    ! grep -qE '^shm .* 9[0-9]\.[0-9]%|^shm .* 100\.0%' out.txt; then
    echo "FAILED: $way"
    cat out.txt
    failed=1
  fi
done
if "$tool" perf -c 127.0.0.1 -p "$port" --latency --memory gpu >out.txt 2>&1 ||
  ! grep -q 'is for streams' out.txt; then
  echo "FAILED: round trips"
  cat out.txt
  failed=1
fi
# GPU 7 is not there, and the server goes on.
if "$tool" perf -c 127.0.0.1 -p "$port" -t 0.1 --memory gpu:7 >out.txt 2>&1 ||
  ! grep -q 'CUDA error 101' out.txt; then
  echo "FAILED: no such GPU"
  cat out.txt
  failed=1
fi
exit "$failed"
