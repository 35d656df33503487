#!/bin/bash
# usage: hardware_pair_test PAIR rxe|siw DRIVER RUN PROGRAM...
#
# tests/hardware/run between two guests: the first one runs what the second one's
# run says that the other host should.
set -euo pipefail
pair=$1 device=$2
driver=$(realpath "$3") run=$(realpath "$4")
shift 4
export TMPDIR=${TEST_TMPDIR:-${TMPDIR:-/tmp}}
programs=()
for program in "$@"; do programs+=("$(realpath "$program")"); done
# shellcheck disable=SC2016  # the guest's
exec "$pair" -d "$device" -t 280 bash -c '
  set -euo pipefail
  run=$1
  shift
  mkdir /tmp/programs
  ln -s "$@" /tmp/programs/
  read -ra words <<<"$(guestctl await words 100)"
  exec "$run" "${words[@]}" --programs /tmp/programs' - "$run" "${programs[@]}" -- \
  bash "$driver" "$run" "${programs[@]}"
