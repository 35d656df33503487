#!/bin/bash
# usage: rdma_calls_test COUNT RDMA_CALLS COMPILATION_MODE PAPER
#
# The instructions of an RDMA lane for a message.  PAPER, which is docs/paper.md,
# has them of an optimised build: a twentieth more or less is another CPU's
# memcpy.
set -euo pipefail
failed=0
# The row of PAPER that begins so, as numbers.
row() { sed -n "s/^| $1 | \(.*\) |$/\1/p" "$paper" | tr -d ',|'; }
paper=$4
read -r -a post < <(row 'to post a message that answers another')
read -r -a read < <(row 'to find it and to read it')
((${#post[@]} == 3 && ${#read[@]} == 3))
at=0
# As many as are posted again at once, so that this counts too.
times=32
for bytes in 8 64 1024; do
  for mode in post read; do
    n=$("$1" --all "$2" $mode $bytes $times)
    # Twice so many messages: one each way.
    echo "$mode, $bytes bytes: $((n / (2 * times))) instructions a message"
    # Neither nothing, nor the device as well.
    ((n / (2 * times) > 100 && n / (2 * times) < 5000))
    declare -n said=$mode
    if [[ $3 == opt ]] &&
      ((20 * n / (2 * times) > 21 * said[at] ||
        20 * n / (2 * times) < 19 * said[at])); then
      echo "FAILED: $paper says ${said[at]}"
      failed=1
    fi
  done
  at=$((at + 1))
done
exit $failed
