#!/bin/bash
# usage: apps_test GUEST_RUN GUEST_PAIR RCSOCK PRELOAD rxe|siw 1|2 rdma|tcp [NAME...]
#
# Real programs, unmodified, under `rcsock run` in one guest or between two: see
# apps.py.
set -euo pipefail
run=$1 pair=$2 device=$5 hosts=$6 lanes=$7
rcsock=$(realpath "$3")
RCSOCK_PRELOAD=$(realpath "$4")
export RCSOCK_PRELOAD
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
shift 7
names=("$@")
if ((${#names[@]} == 0)); then
  names=(redis nginx iperf3)
  # What one host has shown need not be shown again between two.
  [[ $hosts == 2 ]] || names+=(memcached iperf3-P4 iperf3-R)
fi

for program in iperf3 memcached memcaslap nginx redis-benchmark redis-server wrk; do
  PATH=$PATH:/usr/sbin type -P "$program" >/dev/null || {
    echo "apps_test: $program is missing; run tools/install_deps --demo" >&2
    exit 1
  }
done

drive=(python3 "$here/apps.py" drive "$rcsock" "$lanes" "${names[@]}")
guest=(-d "$device" -m 2048 -t 400)
if [[ $hosts == 1 ]]; then
  exec "$run" "${guest[@]}" "${drive[@]}"
fi
exec "$pair" "${guest[@]}" -p 19999 python3 "$here/apps.py" serve -- "${drive[@]}"
