#!/bin/bash
# usage: pace_test.sh PRELOAD
#
# Which connections get a lane after their first calls, and which earn it first:
# those that are silent for most of the time.
set -euo pipefail

preload=$(readlink -f "$1")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

cat >"$tmp/talk.py" <<'END'
import socket
import sys
import threading
import time

listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()


def echo():
    while data := other.recv(64):
        other.sendall(data)


def trip():
    one.sendall(b"ping")
    assert one.recv(64) == b"ping"


thread = threading.Thread(target=echo)
thread.start()
# 5x50 is five round trips, and 50 ms behind each.
for word in sys.argv[1:]:
    times, ms = (int(number) for number in word.split("x"))
    for _ in range(times):
        trip()
        time.sleep(ms / 1000)
# The lane may come behind the last call, and the switch takes some traffic.
for _ in range(4):
    time.sleep(0.1)
    trip()
one.close()
thread.join()
END

failed=
# Runs the talk.  So many ends are to have a lane.
talk() {
  local wanted=$1 promoted
  shift
  rm -f "$tmp/stats"
  RCSOCK_STATS=$tmp/stats LD_PRELOAD=$preload python3 "$tmp/talk.py" "$@"
  promoted=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["promoted"])' "$tmp/stats")
  echo "$*: $promoted ends had a lane, and $wanted should"
  [[ $promoted == "$wanted" ]] || failed=yes
}

unset RCSOCK_PROFILE RCSOCK_SPIN_US RCSOCK_PROMOTE_OPS
talk 2 6x2
talk 0 12x50
RCSOCK_PROFILE=efficient talk 0 12x50
# It has become quick.
talk 2 6x50 40x1
# It is still slow behind 64 calls, and has made 512 at last.
talk 0 6x50 30x45 100x0
talk 2 6x50 30x45 230x0
# Asked for by hand.
RCSOCK_PROFILE=latency talk 2 6x50
RCSOCK_PROMOTE_OPS=8 talk 2 6x50
[[ -z $failed ]] || exit 1
echo PASS
