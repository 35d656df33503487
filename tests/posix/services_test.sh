#!/bin/bash
# usage: services_test.sh BOTH PROGRAM SHIM
#
# PROGRAM (services) as plain TCP has it; and that what is learnt of a service
# costs no long connection its lane, and gives the next one an early start.
set -uo pipefail
both=$1 program=$2 shim=$(readlink -f "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for mode in default early; do
  echo "$mode"
  "$both" "$program" "$shim" $mode || failed=1
done

# Each of three long ones after short ones, at both ends.
"$both" "$program" "$shim" default slow >"$work/out" || failed=1
cat "$work/out"
promotions=$(sed -n 's/^\([0-9]*\) promotions$/\1/p' "$work/out")
[ "${promotions:-0}" = 6 ] || { echo "FAILED: not 6"; failed=1; }

# Ten long ones look for a lane at both ends; so do two that are too short to
# look for any other reason than what has been learnt.
case $program in */*) ;; *) program=./$program ;; esac
RCSOCK_LANES=shm RCSOCK_LOG=2 LD_PRELOAD=$shim "$program" at_once \
  2>"$work/log" >"$work/out" || { cat "$work/out"; failed=1; }
looks=$(grep -c 'looking for its peer' "$work/log")
echo "looks: $looks"
[ "$looks" -ge 24 ] || { echo "FAILED: not 24"; failed=1; }
exit $failed
