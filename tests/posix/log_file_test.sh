#!/bin/bash
# usage: log_file_test.sh SHIM
#
# RCSOCK_LOG_FILE: what the shim has to say is in that file and nowhere else,
# whatever the program does to its descriptors, its root, its user or itself; and
# what there is to say where no lane can be looked for.
set -uo pipefail
shim=$(readlink -f "$1")
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "FAILED: not $3"; failed=1; }
}
lines() { cat "$@" 2>/dev/null | grep -c '^rcsock\[[0-9]*\] [0-9]*\.[0-9]\{6\}: '; }
plain_lines() { grep -c '^rcsock\[[0-9]*\]: ' "$@"; }
# Everything here has one thing to say as it ends: that it can't write its
# statistics.
export RCSOCK_STATS=$work/none/stats
under() { LD_PRELOAD=$shim RCSOCK_LOG_FILE=$log "$@"; }
program=/usr/bin/python3

log=$work/plain
under sh -c 'exit 5' 2>err
expect "status" $? 5
expect "lines in the file" "$(lines plain)" 1
expect "bytes on stderr" "$(wc -c <err)" 0
under sh -c 'exit 5'
expect "the next program's is behind it" "$(lines plain)" 2

log=$work/closed
under "$program" -c '
import os
os.closerange(0, 70000)
for name in range(40): os.open("own.%d" % name, os.O_RDWR | os.O_CREAT)'
expect "lines where all descriptors were closed" "$(lines closed)" 1
expect "bytes in the program's files" "$(cat own.* | wc -c)" 0

# By machine code of its own: nothing is hidden from that, and what the program
# then has at this number is no log.
cat >past.py <<'PY'
import ctypes, mmap, os, sys
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\xb8\x03\x00\x00\x00\x0f\x05\xc3")  # mov $3, %eax; syscall; ret
close = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(
    ctypes.addressof(ctypes.c_char.from_buffer(code)))
number = [int(n) for n in os.listdir("/proc/self/fd")
          if os.path.exists("/proc/self/fd/" + n)
          and os.readlink("/proc/self/fd/" + n) == sys.argv[1]][0]
print("closed" if close(number) == 0 else "not closed")
import fcntl
own = os.open("mine", os.O_RDWR | os.O_CREAT)
print("at its number" if fcntl.fcntl(own, fcntl.F_DUPFD, number) == number else "elsewhere")
PY
log=$work/past
expect "its number" "$(under "$program" past.py "$log" | tr '\n' ' ')" "closed at its number "
expect "bytes in the program's file there" "$(stat -c %s mine)" 0

log=$work/forked
under "$program" -c '
import os
if os.fork() == 0: os.execv("/bin/true", ["true"])
os.wait()'
# (One of them before exec.)
expect "lines of a child, of what it became, and of the parent" "$(lines forked)" 3
expect "by so many processes" "$(grep -o '^rcsock\[[0-9]*\]' forked | sort -u | wc -l)" 2

log=$work/each.%p
under "$program" -c '
import os
for i in range(3):
  if os.fork() == 0: os._exit(0)
  os.wait()'
expect "files with %p" "$(find . -name 'each.*' | wc -l)" 4
for file in each.*; do
  expect "lines of its own" "$(grep -c "^rcsock\[${file#each.}\] " "$file")" "$(lines "$file")"
  expect "lines" "$(lines "$file")" 1
done

# (A user namespace may have root alone.)
other='import os; os.setgid(65534); os.setuid(65534)'
if [ "$(id -u)" != 0 ] || ! "$program" -c "$other" 2>/dev/null; then
  echo "SKIPPED: another user: there is none here"
else
  log=$work/jailed
  mkdir jail
  under "$program" -c '
import os
os.chroot("jail"); os.chdir("/"); os.setgid(65534); os.setuid(65534)'
  expect "lines from another root, by another user" "$(lines jailed)" 1

  log=$work/own.%p
  under "$program" -c '
import os
os.setgid(65534); os.setuid(65534)
if os.fork() == 0: os._exit(0)
os.wait()'
  expect "lines of a child that may have no file" "$(lines own.[0-9]*)" 2
  expect "files" "$(find . -name 'own.[0-9]*[0-9][0-9]' | wc -l)" 1
fi

log=$work/none/log
under sh -c 'exit 5' 2>err
expect "status without a file" $? 5
expect "lines on stderr, without a file" "$(plain_lines err)" 2
expect "one of them of the log" "$(grep -c "can't write the log to $work/none/log: No such file" err)" 1

log=/dev/full
under sh -c 'exit 5' 2>err
expect "status with a full disk" $? 5
expect "bytes on stderr, with a full disk" "$(wc -c <err)" 0

mkfifo pipe
log=$work/pipe
under sh -c 'exit 5' 2>err
expect "status with a pipe that nobody reads" $? 5

log=$work/limited
(ulimit -f 0; under sh -c 'exit 5')
expect "status where no file may grow" $? 5

log=$(printf 'x%.0s' {1..300})
under sh -c 'exit 5' 2>err
expect "status with a path that is too long" $? 5
expect "said" "$(grep -c 'RCSOCK_LOG_FILE is too long: ignored' err)" 1

# What keeps our thread from starting is said once for each connection.
cat >exchange.py <<'PY'
import socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
for _ in range(100):
    for sender, receiver in (one, other), (other, one):
        sender.sendall(b"x")
        receiver.recv(1)
PY
(ulimit -n 7; RCSOCK_LOG=1 LD_PRELOAD=$shim "$program" exchange.py 2>few)
expect "lines on two streams without descriptors for a lane" "$(grep -c ': no lane: no_fds' few)" 2

# A filter that ends the program for any call of ours: openat, fstat, write.
# (ctypes' prctl by libc's name, as a program's.)
cat >filter.py <<'PY'
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
KILL, ALLOW = 0x80000000, 0x7fff0000
rules = [struct.pack("HBBI", 0x20, 0, 0, 0)]
forbidden = [257, 5, 262, 1]  # openat, fstat, newfstatat, write
for at, number in enumerate(forbidden):
    rules.append(struct.pack("HBBI", 0x15, len(forbidden) - at, 0, number))
rules.append(struct.pack("HBBI", 0x06, 0, 0, ALLOW))
rules.append(struct.pack("HBBI", 0x06, 0, 0, KILL))
code = ctypes.create_string_buffer(b"".join(rules))
program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code))
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) != 0: sys.exit("no filter")
os._exit(7)
PY
log=$work/filtered
under "$program" filter.py
expect "status under a filter" $? 7
expect "lines, all from before it" "$(lines filtered)" 1
exit $failed
