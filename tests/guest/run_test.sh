#!/bin/bash
# usage: run_test RUN rxe|siw
#
# What tests/guest/run promises, and that two ids in one guest can talk.
set -euo pipefail
run=$1 device=$2
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

failed=0
# check NAME EXPECTED ACTUAL
check() {
  [[ $3 == "$2" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  failed=1
}
# guest COMMAND...: sets status and out
guest() {
  status=0
  out=$("$run" -d "$device" -t "${seconds:-60}" -w "$tmp" "$@" 2>"$tmp/err") ||
    status=$?
  [[ $status != 125 ]] || cat "$tmp/err"
}

# shellcheck disable=SC2016  # the guest's variables
guest bash -c '
  PATH=$PATH:'"$(dirname "$(readlink -f "$run")")"'/bin
  for address in "$RDMA_IP" ${RDMA_IP6:-}; do
    rping -s -a "$address" -p 7174 -C 10 >/dev/null 2>&1 &
    guestctl listening 7174
    rping -c -a "$address" -p 7174 -C 10 >/dev/null 2>&1 || exit 1
    wait $! || true
  done
  echo "talked over ${RDMA_DEV%0}"'
check "rping: status" 0 "$status"
if [[ -n ${RCSOCK_TEST_DEVICE:-} ]]; then
  check "rping" "talked over ${RCSOCK_TEST_DEVICE%0}" "$out"
  exit "$failed"
fi
check "rping" "talked over $device" "$out"

guest bash -c 'guestctl device del; rdma link; guestctl device add; rdma link'
check "the device comes back" "link ${device}0/1 state ACTIVE physical_state LINK_UP netdev net0 " "$out"
# The rest is of guests, whatever their device.
if [[ $device != rxe ]]; then exit "$failed"; fi

guest sh -c 'echo one; echo two >&2'
check "stdout" one "$out"
check "stderr" two "$(<"$tmp/err")"
guest sh -c 'exit 7'
check "exit status" 7 "$status"
# shellcheck disable=SC2016
guest sh -c 'kill -KILL $$'
check "status of a killed command" 137 "$status"
seconds=5 guest sleep 60
check "time limit" 124 "$status"

export RCSOCK_FOR_GUEST='a  b$' OTHER_FOR_GUEST=c
# shellcheck disable=SC2016
PASS_ENV=OTHER_FOR_GUEST guest sh -c \
  'printf "%s,%s,%s,%s" "$PWD" "$1" "$RCSOCK_FOR_GUEST" "$OTHER_FOR_GUEST"' sh 'd  e'
check "directory, arguments, environment" "$PWD,d  e,a  b\$,c" "$out"

mkdir "$tmp/beside"
guest sh -c "echo kept >$tmp/kept; touch $TMPDIR/lost.$$; ls $TMPDIR/lost.$$"
check "a write outside of DIR is seen" "$TMPDIR/lost.$$" "$out"
check "a write in DIR stays" kept "$(<"$tmp/kept")"
check "a write elsewhere is lost" "" "$(ls "$TMPDIR/lost.$$" 2>/dev/null || true)"

exit "$failed"
