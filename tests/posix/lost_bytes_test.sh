#!/bin/bash
# usage: lost_bytes_test LOST_BYTES SHIM: what a program that is not followed does not get is
# said, and counted to the byte.
set -euo pipefail
lost=$1 shim=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for case in lost_fork lost_vfork; do
  # (The peer is killed, which the program says as well.)
  all=$({ "$lost" $case || true; } | grep -o 'found [0-9]*')
  rm -f "$work"/*
  got=$({ RCSOCK_PROMOTE_OPS=1 RCSOCK_STATS=$work/stats.%p RCSOCK_LOG=1 \
    LD_PRELOAD=${SANITIZER_PRELOAD:+$SANITIZER_PRELOAD:}$shim${SANITIZER_BEHIND:+:$SANITIZER_BEHIND} \
    "$lost" $case 2>"$work/err" || true; } | grep -o 'found [0-9]*')
  python3 - "$case" "${all#found }" "${got#found }" "$work" <<'PYTHON'
import glob, json, sys

case, all, got, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
stats = [json.load(open(name)) for name in glob.glob(f"{work}/stats.*")]
counted = sum(one["lost_bytes"] for one in stats)
reasons = sum(one["reasons"].get("unread_exec", 0) for one in stats)
print(f"{case}: {got} of {all} bytes, {counted} counted as lost, {reasons} streams")
if got + counted != all or counted == 0 or reasons != 1:
    sys.exit("not what was lost")
if f"{counted} bytes read ahead are lost" not in open(f"{work}/err").read():
    sys.exit("nothing said")
PYTHON
done
