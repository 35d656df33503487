#!/bin/bash
# usage: no_unwinder_test PROGRAM PROGRAM-BY-NAME LIBRARY SHIM
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES
shim=$(readlink -f "$4")
run() {
  RCSOCK_PROMOTE_OPS=1 RCSOCK_LANES=shm LD_PRELOAD=$shim timeout 60 "$@"
}
run "$1"
run "$2"
if [[ $(id -u) != 0 ]]; then exit 0; fi

# What runs is what the process has started with, not what its new root holds.
jail=$(mktemp -d)
trap 'rm -rf "$jail"' EXIT
for folder in lib lib64 usr/lib lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu; do
  mkdir -p "$jail/$folder"
  cp "$3" "$jail/$folder/libgcc_s.so.1"
done
for program in "$1" "$2"; do
  said=$(run "$program" "$jail")
  if [[ $said != ok ]]; then
    echo "$program: $said" >&2
    exit 1
  fi
done
