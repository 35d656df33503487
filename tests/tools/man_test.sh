#!/bin/bash
# usage: man_test RCSOCK PAGE-DIRECTORY HEADER
#
# The manual names every command and every option, and none that is not there; and
# every call of the header that is not the C library's.
set -euo pipefail
tool=$1 pages=$2 header=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# page NAME: its text, without what makes it bold
page() { sed 's/\\-/-/g; s/\\f[A-Z]//g; s/\\fP//g' "$pages/$1"; }

# same WHAT EXPECTED FOUND: two files
same() {
  diff -u --label "$1: the program" --label "$1: the page" "$2" "$3" && return
  failed=1
}

"$tool" --help | awk '/^Subcommands/ {on = 1; next} on && NF {print $1} on && !NF {exit}' |
  sort >"$work/commands"
[[ $(wc -l <"$work/commands") -ge 4 ]] || { echo "no commands in --help"; exit 1; }
page rcsock.1 | grep -oE '^\.BR rcsock-[a-z]+ \(1\)$' | sed 's/.*rcsock-//; s/ .*//' |
  sort -u >"$work/named"
same "rcsock(1), commands" "$work/commands" "$work/named"

while read -r command; do
  "$tool" "$command" --help | grep -oE '^ +(-[A-Za-z0-9],)?--[a-z][a-z-]*' |
    grep -oE -- '--[a-z-]+' | sort -u >"$work/options"
  [[ -s $work/options ]] || { echo "no options in $command --help"; exit 1; }
  # What a page says of other programs' options is in examples.
  page "rcsock-$command.1" | sed '/^\.SH EXAMPLES/,/^\.SH/d' |
    grep -oE -- '--[a-z][a-z-]*' | sort -u >"$work/named"
  same "rcsock-$command(1)" "$work/options" "$work/named"
  "$tool" "$command" --help | grep -oE 'RCSOCK_[A-Z_]+' | sort -u >"$work/variables" || true
  while read -r variable; do
    grep -q "$variable" <<<"$(page "rcsock-$command.1")" && continue
    echo "FAILED: rcsock-$command(1) does not name $variable"
    failed=1
  done <"$work/variables"
done <"$work/commands"

grep -oE 'rcs_[a-z0-9_]+\(' "$header" | tr -d '(' | sort -u |
  python3 -c '
import ctypes, sys

c = ctypes.CDLL(None)
print(*(n for n in sys.stdin.read().split() if not hasattr(c, n[4:])), sep="\n")' \
    >"$work/calls"
[[ $(wc -l <"$work/calls") -ge 15 ]] || { echo "no calls in $header"; exit 1; }
while read -r call; do
  grep -q "\\b$call\\b" <<<"$(page rcs_socket.3)" && continue
  echo "FAILED: rcs_socket(3) does not name $call"
  failed=1
done <"$work/calls"
exit $failed
