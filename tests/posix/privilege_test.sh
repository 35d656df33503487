#!/bin/bash
# usage: privilege_test.sh SHIM LIBRARY PROGRAM.c HEADERS...
#
# Whoever starts a program that has more rights than he does not make rcsock do
# anything with them; and what another user has put where rcsock writes is left
# alone.  LIBRARY is librcsock.so.0, HEADERS what is installed.
set -uo pipefail
shim=$(readlink -f "$1")
library=$(readlink -f "$2")
source=$(readlink -f "$3")
for header in "${@:4}"; do
  [[ $header == */rcsock.h ]] && include=$(dirname "$(dirname "$(readlink -f "$header")")")
done
failed=0
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "FAILED: not $3"; failed=1; }
}

# One accessor of the environment.
for file in "$shim" "$library"; do
  expect "getenv in $(basename "$file")" \
    "$(nm -D --undefined-only "$file" | grep -wcE 'getenv|__secure_getenv')" 0
done

work=$(mktemp -d /var/tmp/rcsock-privilege.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 1777 "$work"
cd "$work" || exit 1
as_other() { setpriv --reuid=23456 --regid=23456 --clear-groups "$@"; }
under() { LD_PRELOAD=$shim RCSOCK_STATS="$work/$1" "${@:2}" 2>err; }

if [ "$(id -u)" != 0 ]; then
  echo "not tried: other users and set-uid programs, which need root"
  exit $failed
fi

# --- What another user has put there
echo precious >target
chmod 644 target
as_other ln -s "$work/target" "$work/link"
under link sh -c 'exit 0'
expect "a symbolic link is followed" "$(cat target)" precious
# (The kernel may have refused it: fs.protected_symlinks.)
expect "it says so" "$(grep -c "can't write statistics" err)" 1
ln -s target mine
under mine sh -c 'exit 0'
expect "nor is one of our own" "$(cat target) $(grep -c 'symbolic link' err)" "precious 1"
as_other sh -c "echo planted >$work/planted"
under planted sh -c 'exit 0'
expect "another user's file is written" "$(cat planted)" planted
expect "why not" "$(grep -c 'another user' err)" 1
ln target second
under second sh -c 'exit 0'
expect "a file of several names is written" "$(cat target)" precious
as_other mkfifo "$work/fifo"
under fifo sh -c 'exit 0'
expect "another user's pipe" "$(grep -c "can't write statistics" err)" 1
for name in link planted second; do
  LD_PRELOAD=$shim RCSOCK_LOG=1 RCSOCK_LOG_FILE="$work/$name" RCSOCK_STATS=none/x sh -c 'exit 0' 2>err
  expect "a log is written to $name" "$(cat target planted | tr '\n' ' ')" "precious planted "
done
# What is our own is written, and anew.
printf '%5000s' x >own
under own sh -c 'exit 0'
expect "lines of an own file" "$(wc -l <own)" 1
under new.%p sh -c 'exit 0'
expect "a new file" "$(cat new.* | grep -c '"lanes"')" 1
expect "a descriptor by its name" "$(LD_PRELOAD=$shim RCSOCK_STATS=/dev/stdout sh -c 'exit 0' | grep -c '"lanes"')" 1

# --- A program with more rights
install -m 755 "$library" librcsock.so.0
# (The loader looks for a privileged program's libraries in no place that the
# environment names.)
cc -I"$include" -o program "$source" librcsock.so.0 -Wl,-rpath,"$work" || exit 1
expect "without more rights: a lane" \
  "$(RCSOCK_PROMOTE_OPS=1 ./program | grep -c 'lane another')" 1
try_privileged() {
  rm -f stats log target2
  echo precious >target2
  chmod 600 target2
  chmod 777 "$work"
  as_other env RCSOCK_STATS="$work/target2" RCSOCK_LOG=9 RCSOCK_LOG_FILE="$work/log" \
    RCSOCK_PROMOTE_OPS=1 RCSOCK_KEY_FILE="$work/target2" "$work/program" >out 2>err
  status=$?
  chmod 1777 "$work"
  expect "$1: it ran" "$status" 0
  expect "$1: it is one of more rights" "$(grep -c 'secure 1' out)" 1
  expect "$1: it has a lane" "$(grep -c 'lane tcp' out)" 1
  expect "$1: root's file" "$(cat target2)" precious
  expect "$1: a log" "$([ -e log ] && echo there || echo none)" none
  expect "$1: it says nothing" "$(wc -c <err)" 0
}
if findmnt -no OPTIONS -T "$work" | grep -qw nosuid; then
  echo "not tried: set-uid programs, $work is on a file system without them"
else
  chmod 4755 program
  try_privileged set-uid
  chown 0:0 program && chmod 2755 program
  try_privileged set-gid
  chmod 755 program
  if command -v setcap >/dev/null && setcap cap_net_raw+ep program; then
    try_privileged capability
  else
    echo "not tried: a program with capabilities of its file, no setcap"
  fi
fi
exit $failed
