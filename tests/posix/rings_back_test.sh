#!/bin/bash
# usage: rings_back_test.sh SHIM
#
# Connections in shared memory that were busy and are idle give their rings back,
# and go on; with a limit of such memory the others stay on TCP, and say why.
set -uo pipefail
shim=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/both.py" <<'PY'
import os, socket, sys, threading, time
count, size, pause = int(sys.argv[1]), 384 << 10, float(sys.argv[2])
def shared():
    return [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssShmem")][0]
def take(s, n):
    parts = []
    while n > 0:
        part = s.recv(min(n, 65536))
        if not part: raise SystemExit("an end")
        parts.append(part); n -= len(part)
    return b"".join(parts)
def echo(s):
    try:
        while True:
            n = int.from_bytes(take(s, 4), "big")
            s.sendall(take(s, n))
    except SystemExit: pass
def serve(l):
    while True:
        s, _ = l.accept()
        threading.Thread(target=echo, args=(s,), daemon=True).start()
l = socket.create_server(("127.0.0.1", 0), backlog=1000)
pid = os.fork()
if pid == 0:
    threading.Thread(target=serve, args=(l,), daemon=True).start()
    sys.stdin.read()
    sys.exit(0)
port = l.getsockname()[1]
l.close()
def call(s, message):
    s.sendall(len(message).to_bytes(4, "big"))
    s.sendall(message)
    if take(s, len(message)) != message: print("WRONG BYTES"); os._exit(1)
all = [socket.create_connection(("127.0.0.1", port)) for i in range(count)]
def busy(seed):
    for i, s in enumerate(all):
        for k in range(40): call(s, b"x" * 64)
        call(s, bytes([(seed + i) & 255]) * size)
        for k in range(10): call(s, b"y" * 5000)
busy(1)
print("busy", shared() * 1024)
time.sleep(pause)
print("idle", shared() * 1024)
busy(7)
print("again", shared() * 1024)
PY
failed=0
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "FAILED: not $3"; failed=1; }
}
number() { sed -n "s/^$1 //p" "$work/out"; }
# Of all processes together.
stat_of() { cat "$work"/stats.* | grep -o "\"$1\": [0-9]*" | grep -o '[0-9]*$' | awk '{ sum += $1 } END { print sum + 0 }'; }
run() {
  rm -f "$work"/stats.*
  # (The server ends with its input.)
  LD_PRELOAD=$shim RCSOCK_STATS="$work/stats.%p" RCSOCK_PROMOTE_OPS=8 "${@}" >"$work/out" < <(exec sleep 100)
  status=$?
  cat "$work/out"
}
count=24
kept=$((32 << 10))
run timeout 100 python3 "$work/both.py" $count 10
expect "it ran" "$status" 0
expect "more than an idle one keeps, when busy" "$(($(number busy) > count * 2 * kept))" 1
# (Each end has both rings in its memory.)
expect "and no more than that, when idle" "$(($(number idle) <= count * 2 * kept))" 1
expect "on lanes again" "$(($(number again) > count * 2 * kept))" 1
expect "idle ones counted" "$(($(stat_of idle_rings) >= count))" 1

RCSOCK_MAX_SHARED=1M run timeout 100 python3 "$work/both.py" $count 0
expect "it ran with a limit" "$status" 0
expect "about as much as the limit" "$(($(number busy) < 8 << 20))" 1
expect "the reason is there" "$(cat "$work"/stats.* | grep -c shared_memory | sed 's/[1-9]/some/')" some
exit $failed
