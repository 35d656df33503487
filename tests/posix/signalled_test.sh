#!/bin/bash
# usage: signalled_test.sh SHIM
#
# A process that SIGHUP, SIGINT or SIGTERM ends writes its statistics, and but for
# that it ends, and sees its signals, as it does without the shim.
set -uo pipefail
shim=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
program=/usr/bin/python3
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "FAILED: not $3"; failed=1; }
}
under() { LD_PRELOAD=$shim RCSOCK_STATS=$work/stats.%p "$program" "$@"; }
# same NAME PROGRAM: says the same of itself, and ends so, plain and under it;
# then `stats` is how many files there are.
same() {
  rm -f stats.*
  "$program" "$2" >plain; local plain=$?
  under "$2" >with; local with=$?
  expect "$1: status" "$with" "$plain"
  diff plain with && echo "$1: says the same" || failed=1
  stats=$(find . -name 'stats.*' | wc -l)
}

cat >actions.py <<'PY'
# What sigaction says of each signal, at first and after what programs do: the
# handler, the flags, and what the kernel knows of the mask.
import ctypes, signal
libc = ctypes.CDLL(None)
def said(action): return action.raw[:16].hex() + action.raw[136:140].hex()
def look(number):
    action = ctypes.create_string_buffer(152)
    libc.sigaction(number, None, action)
    return said(action)
def default(number, flags):
    action = ctypes.create_string_buffer(152)
    action[9] = 2  # SIGUSR1 in the mask
    action[136:140] = flags.to_bytes(4, "little")
    old = ctypes.create_string_buffer(152)
    libc.sigaction(number, action, old)
    return said(old)
numbers = signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1
for number in numbers: print(look(number))
for flags in 0, 0x10000000, 0x80000000, 4:  # SA_RESTART, SA_RESETHAND, SA_SIGINFO
    for number in numbers: print(default(number, flags), look(number))
for number in numbers:
    print(libc.siginterrupt(number, 1), look(number), libc.siginterrupt(number, 0), look(number))
libc.signal.restype = ctypes.c_void_p
for number in numbers:
    print(libc.signal(number, ctypes.c_void_p(1)), look(number))  # SIG_IGN
    print(libc.signal(number, ctypes.c_void_p(0)), look(number))
PY
same "sigaction" actions.py

cat >ends.py <<'PY'
# By each of them: at once, in a wait, in a thread's, behind a handler that ends
# the program by the signal once more, after a one-shot handler; and its child.
import ctypes, os, signal, sys, threading, time
def ended(number, what):
    pid = os.fork()
    if pid == 0:
        for one in signal.SIGINT, number: signal.signal(one, signal.SIG_DFL)
        what(number)
        os._exit(3)
    return os.waitpid(pid, 0)[1]
def at_once(number): os.kill(os.getpid(), number)
def in_a_wait(number):
    threading.Timer(0.05, lambda: os.kill(os.getpid(), number)).start()
    time.sleep(20)
def again(number):
    def handler(number, frame):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    signal.signal(number, handler)
    os.kill(os.getpid(), number)
    time.sleep(20)
def one_shot(number):
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    libc.sysv_signal(number, handler)
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
def blocked(number):
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    os.kill(os.getpid(), number)
    if number in signal.sigpending(): signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
def waited_for(number):
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(100 + signal.sigwait([number]))
def ignored(number):
    signal.signal(number, signal.SIG_IGN)
    os.kill(os.getpid(), number)
for what in at_once, in_a_wait, again, one_shot, blocked, waited_for, ignored:
    for number in signal.SIGHUP, signal.SIGINT, signal.SIGTERM:
        print(what.__name__, number, ended(number, what))
PY
same "ends" ends.py
expect "files, of 21 children and their parent" "$stats" 22
expect "that are whole" "$(cat stats.* | grep -c '^{"pid".*}$')" 22

cat >interrupted.py <<'PY'
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
PY
same "a KeyboardInterrupt" interrupted.py 2>err
expect "its file" "$stats" 1

# The counts are those of the moment: of connections that are open, on a lane,
# in threads that are busy with them.
cat >busy.py <<'PY'
import os, signal, socket, threading
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with socket.create_server(("127.0.0.1", 0)) as listener:
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
moved = threading.Semaphore(0)
def ping():
    while True:
        one.sendall(b"x" * 100)
        assert len(one.recv(100, socket.MSG_WAITALL)) == 100
        moved.release()
def pong():
    while True: other.sendall(other.recv(100))
for target in ping, pong: threading.Thread(target=target, daemon=True).start()
for _ in range(2000): moved.acquire()
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
PY
rm -f stats.*
for _ in $(seq 20); do
  RCSOCK_PROMOTE_OPS=1 under busy.py
  [ $? = 143 ] || { echo "FAILED: status"; failed=1; }
done
cat stats.* | "$program" -c '
import json, sys
runs = [json.loads(line) for line in sys.stdin]
print("busy:", len(runs), "files, least bytes",
      min(sum(lane["tx_bytes"] for lane in run["lanes"].values()) for run in runs))
for run in runs:
    moved = sum(lane["tx_bytes"] for lane in run["lanes"].values())
    assert run["streams"] == 2 and moved >= 400000, run
assert len(runs) == 20
assert sum(run["promoted"] for run in runs) >= 20, runs' || failed=1

# A child of vfork has nothing to say, nor has who filters its calls.
cat >vforked.py <<'PY'
import subprocess, sys
print(subprocess.run(["sh", "-c", "kill -TERM $$"]).returncode)
PY
same "what the program starts" vforked.py
expect "files" "$stats" 2
cat >filtered.py <<'PY'
import ctypes, os, struct
libc = ctypes.CDLL(None)
code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000))
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
libc.prctl(38, 1, 0, 0, 0)
libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0)
status = open("/proc/self/status").read()
print(hex(int(status.split("SigCgt:")[1].split()[0], 16) & 0x4001))
os.kill(os.getpid(), 15)
PY
same "with a filter" filtered.py

# Nobody has asked: no handler.
cat >caught.py <<'PY'
status = open("/proc/self/status").read()
print(int(status.split("SigCgt:")[1].split()[0], 16) & 0x4001)
PY
expect "caught, where nothing is asked for" "$(LD_PRELOAD=$shim "$program" caught.py)" 0
# The kernel spares the first process of a namespace what it leaves to default.
if unshare --user --map-root-user --pid --fork true 2>/dev/null; then
  expect "the first process of a namespace" "$(LD_PRELOAD=$shim RCSOCK_STATS=$work/first \
    unshare --user --map-root-user --pid --fork --mount-proc \
    "$program" -c 'import os; os.kill(1, 15); print("goes on")')" "goes on"
fi
# So does who has become the first of one by fork, and executes nothing.
cat >first.py <<'PY'
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
def status(pid): return os.waitpid(pid, 0)[1]
if libc.unshare(0x20000000) != 0 and libc.unshare(0x30000000) != 0: sys.exit(0)
pid = os.fork()
if pid == 0:
    for number in signal.SIGHUP, signal.SIGINT, signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(1, number)
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(3)
    print("goes on, and its child", status(child), flush=True)
    os._exit(5)
print(status(pid))
PY
same "a child that is the first of a namespace" first.py
# What was ignored when it began stays so.
expect "ignored from the beginning" "$(trap '' TERM; under -c '
import os, signal
os.kill(os.getpid(), 15)
print(signal.getsignal(15).name)')" SIG_IGN
exit $failed
