#!/bin/bash
# usage: stderr_test.sh SHIM
#
# What the shim has to say (here: where it can't write its statistics) goes to
# stderr, and nowhere else; and it never ends the program.
set -uo pipefail
shim=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
under() { LD_PRELOAD=$shim RCSOCK_STATS=$work/none/stats sh -c "$1"; }
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "FAILED: not $3"; failed=1; }
}

under 'exit 5' 2>"$work/err"
expect "status" $? 5
expect "lines on stderr" "$(grep -c 'rcsock.*statistics' "$work/err")" 1

under "exec 2>>$work/log; exit 5" 2>/dev/null
expect "lines in a log put there since" "$(grep -c statistics "$work/log")" 1

# The program's own file is the next descriptor after it has closed stderr.
under "exec 2>&-; exec 2<>$work/data; exit 5"
expect "status with another fd 2" $? 5
expect "bytes in the program's file" "$(stat -c %s "$work/data")" 0

LD_PRELOAD=$shim RCSOCK_STATS=/dev/full sh -c 'exit 5' 2>"$work/full"
expect "status with a full disk" $? 5
expect "lines with a full disk" "$(grep -c "can't write statistics to /dev/full: No space" "$work/full")" 1

# A pipe that nobody reads; one whose reader has gone.  (Its exit would never
# come, SIGTERM or not.)
mkfifo "$work/pipe"
timeout -s KILL 20 env LD_PRELOAD=$shim RCSOCK_STATS=$work/pipe sh -c 'exit 5' 2>"$work/unread"
expect "status with a pipe that nobody reads for statistics" $? 5
expect "lines" "$(grep -c "can't write statistics to $work/pipe: No such device" "$work/unread")" 1
exec 8<>"$work/pipe" 9>"$work/pipe" 8<&-
timeout -s KILL 20 env LD_PRELOAD=$shim RCSOCK_STATS=/dev/stdout sh -c 'exit 5' >&9 2>/dev/null
expect "status with a pipe that has no reader any more" $? 5
exec 9>&-

# (Also where stderr is a file that a shell has made.)
LD_PRELOAD=$shim RCSOCK_LOG=loud sh -c 'exit 5' 2>"$work/loud"
expect "lines of a level that is none" "$(grep -c 'RCSOCK_LOG=loud is not a number' "$work/loud")" 1

(ulimit -f 0; under 'exit 5' 2>"$work/limited")
expect "status where no file may grow" $? 5

under 'exit 5' 2> >(exec 0<&-; exit 0)
expect "status with a pipe that nobody reads" $? 5
exit $failed
