#!/bin/bash
# usage: renamed_test BOTH PROGRAM SHIM: under the preload by another name the
# program that inherits a connection is told of it all the same.
set -uo pipefail
both=$1 program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$3" "$work/other.so"
failed=0
for case in exec_warm_cat_alone spawn_warm_cat vfork_warm_cat; do
  "$both" "$program" "$work/other.so" lane "$case" || failed=1
done
exit $failed
