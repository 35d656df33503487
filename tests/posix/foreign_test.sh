#!/bin/bash
# usage: foreign_test PRELOAD
#
# Connections that a launcher without rcsock hands to a program under rcsock by
# exec.  All of it is in a PID namespace of its own, where every process may be
# looked into.
set -euo pipefail
library=$(readlink -f "$1")
if [[ ${2-} != inside ]]; then
  [[ $(id -u) == 0 ]] || { echo "SKIPPED: not root"; exit 0; }
  # (The first process of the namespace adopts all others: it is no launcher.)
  unshare --pid --fork --mount-proc --kill-child "$0" "$library" inside
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RCSOCK_PROMOTE_OPS=1 RCSOCK_NO_CONFIG=1 PRELOAD=$library
cat >"$work/launcher.py" <<'EOF'
"""usage: launcher.py accept|connect PORT|0 close|stay|filter|paced|young|keep|steal NUMBERS COMMAND...

Runs COMMAND under rcsock with a connection as NUMBERS.  With `young` it starts a
process for that, which is younger than the connection.  With `keep` it holds the
connection until it is told to let go, and with `steal` it then echoes by itself."""
import ctypes, os, signal, socket, struct, sys
how, port, what, numbers, *command = sys.argv[1:]
if how == "accept":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    one, _ = listener.accept()
else:
    one = socket.create_connection(("127.0.0.1", int(port)))
if what == "filter":
    everything = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffffffff))
    one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(everything)))
elif what == "paced":
    one.setsockopt(socket.SOL_SOCKET, 47, 1 << 30)
if what == "young" and (child := os.fork()):
    one.close()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0:
    for number in numbers.split(","):
        os.dup2(one.fileno(), int(number))
    os.execvpe(command[0], command, {**os.environ, "LD_PRELOAD": os.environ["PRELOAD"]})
if what not in ("keep", "steal"):
    one.close()
else:
    sys.stdin.readline()
if what == "keep":
    one.close()
elif what == "steal":
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("gone", flush=True)
    while data := one.recv(16, socket.MSG_WAITALL):
        one.sendall(data)
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
EOF
cat >"$work/client.py" <<'EOF'
"""The other end of the connection, under rcsock, and the judge."""
import os, socket, struct, subprocess, sys, time
launcher, how, what, numbers, *command = sys.argv[1:]
plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
listener = socket.create_server(("127.0.0.1", 0))
started = subprocess.Popen(
    ["python3", launcher, how, str(listener.getsockname()[1]), what, numbers, *command],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE if how == "accept" else None,
    text=True, env=plain)
if how == "accept":
    one = socket.create_connection(("127.0.0.1", int(started.stdout.readline())))
else:
    one, _ = listener.accept()

def tcp():
    return struct.unpack_from("QQ", one.getsockopt(socket.IPPROTO_TCP, 11, 232), 120)

def echo(times):
    for i in range(times):
        text = b"%016d" % i
        one.sendall(text)
        if one.recv(16, socket.MSG_WAITALL) != text:
            sys.exit("other bytes")

def await_lane():
    end = time.monotonic() + 15
    while True:
        before = tcp()
        echo(20)
        if tcp() == before:
            return
        if time.monotonic() > end:
            sys.exit("still on TCP")

if what in ("close", "young"):
    await_lane()
else:
    echo(3000)
    before = tcp()
    echo(20)
    if tcp() == before:
        sys.exit("a lane, while another process may hold the connection")
    if what in ("keep", "steal"):
        print("go", file=started.stdin, flush=True)
    if what == "keep":
        await_lane()
    elif what == "steal":
        # (What the program had taken would have gone with it.)
        started.stdout.readline()
        echo(100)
one.shutdown(socket.SHUT_WR)
if one.recv(1) != b"":
    sys.exit("no end")
if started.wait(20) != 0:
    sys.exit("the launcher failed")
EOF
failed=0
try() {
  local name=$1
  shift
  if LD_PRELOAD=$library timeout 60 python3 "$work/client.py" \
    "$work/launcher.py" "$@"; then
    echo "$name: ok"
  else
    echo "$name: FAILED"
    failed=1
  fi
}
# Some ancestor of the program must be older than the connection, by more than
# clocks of 10 ms can tell: this process is.  (The first process of the namespace
# does not count.)
(
  sleep 0.1
  # inetd's numbers, and systemd's.
  try accepted accept close 0,1 cat
  try as_number_3 accept close 3 sh -c 'exec cat <&3 >&3'
  # (Who got the socket before it was connected may be outside of the namespace.)
  try connected connect stay 0,1 cat
  # What no lane follows, and only the kernel tells.
  try with_a_filter accept filter 0,1 cat
  try paced accept paced 0,1 cat
  try by_a_young_process accept young 0,1 cat
  try let_go_later accept keep 0,1 cat
  try used_by_both accept steal 0,1 cat
  exit $failed
)
