#!/bin/bash
# usage: switch_wakes_test.sh COUNT_SYSCALLS SWITCH_WAKES PRELOAD
#
# That a switch does not wake a thread which sleeps, and has nothing to do.
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# The wish for lanes by hand: a traced program is slow.
RCSOCK_PROMOTE_OPS=8 RCSOCK_PROFILE=efficient RCSOCK_STATS=$tmp/stats \
  "$1" "$tmp/calls" /usr/bin/env LD_PRELOAD="$(readlink -f "$3")" "$2"

python3 - "$tmp" <<'END'
import json
import pathlib
import sys

tmp = pathlib.Path(sys.argv[1])
ENDS = 100
# 15 and 7.  When each change of a switch woke the threads it was 27 and 14.
MOST = 26
calls = json.loads((tmp / "calls").read_text())["calls"]
promoted = json.loads((tmp / "stats").read_text())["promoted"]
each = {name: calls.get(name, 0) / ENDS for name in ("write", "epoll_pwait2")}
print(f"{promoted} ends had a lane; system calls for each end: {each}")
if promoted < 0.9 * ENDS:
    sys.exit("FAIL: few had a lane")
if sum(each.values()) > MOST:
    sys.exit(f"FAIL: more than {MOST}")
END
echo PASS
