#!/bin/bash
# usage: stat_test RCSOCK PRELOAD CHAT
#
# `rcsock stat` against real processes under rcsock: what it shows is exact, and a
# process that is stopped, dies or lies neither holds it up nor fools it.
set -euo pipefail
# All that it sees is its own: a network namespace has its own abstract names.
# (Bazel's sandbox has made one; without it two runs would meet each other.)
if [[ -z ${STAT_TEST_ALONE-} ]] && unshare -rn ip link set lo up 2>/dev/null
then
  export STAT_TEST_ALONE=1
  exec unshare -rn bash -c 'ip link set lo up && exec bash "$0" "$@"' "$0" "$@"
fi
tool=$(realpath "$1") chat=$(realpath "$3")
RCSOCK_PRELOAD=$(realpath "$2")
export RCSOCK_PRELOAD
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/stat.XXXXXX")
cd "$tmp"
unset LD_PRELOAD RCSOCK_LANES RCSOCK_STATS RCSOCK_LOG RCSOCK_LOG_FILE
export XDG_CONFIG_HOME=$tmp/none RCSOCK_PROMOTE_OPS=1 RCSOCK_SPIN_US=0
trap 'jobs -p | xargs -r kill -KILL 2>/dev/null; wait 2>/dev/null || true' EXIT

failed=0
# check NAME EXPECTED ACTUAL
check() {
  [[ $3 == "$2" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  failed=1
}
# ask EXPRESSION: of `j`, the object in json.txt
ask() {
  python3 -c '
import json, sys
j = json.load(open("json.txt"))
p = {one["pid"]: one for one in j["processes"]}
print(eval(sys.argv[1], {"j": j, "p": p, "sorted": sorted}))' "$1"
}
# look PID: sets status; json.txt
look() {
  status=0
  "$tool" stat --json --pid "$1" >json.txt 2>err.txt || status=$?
}
# rounds N: N round trips over each connection
rounds() {
  echo "$1" >&"${talk[1]}"
  local line
  read -r -t 30 line <&"${talk[0]}"
  check "round trips" done "$line"
}

# start LANES: a server and a client with three connections; sets server, client
start() {
  RCSOCK_LANES=$1 "$tool" run -- "$chat" serve >port.txt &
  server=$!
  local i
  for ((i = 0; i < 1000; i++)); do
    [[ -s port.txt ]] && break
    sleep 0.01
  done
  port=$(<port.txt)
  coproc talk { RCSOCK_LANES=$1 exec "$tool" run -- "$chat" connect "$port" 3; }
  client=$talk_PID
}
finish() {
  exec {talk[1]}>&-
  wait "$client" || true
  kill "$server" && wait "$server" || true
  rm -f port.txt
}

# --- On a lane -----------------------------------------------------------------
start auto
total=0
for ((i = 0; i < 200; i++)); do
  rounds 20
  total=$((total + 20))
  look "$client"
  [[ $(ask "[s['state'] for p in j['processes'] for s in p['streams']]") == \
    "['on_lane', 'on_lane', 'on_lane']" ]] && break
done
rounds 500
total=$((total + 500))
for pid in "$client" "$server"; do
  look "$pid"
  check "$pid: status" 0 "$status"
  check "$pid: one process" "[$pid]" "$(ask 'list(p)')"
  check "$pid: it answers" "True process chat" \
    "$(ask "p[$pid]['answers'], p[$pid]['source'], p[$pid]['program']" |
      tr -d "(),'")"
  check "$pid: lanes" "['shm', 'shm', 'shm']" \
    "$(ask "[s['lane'] for s in p[$pid]['streams']]")"
  check "$pid: reasons" "['none', 'none', 'none']" \
    "$(ask "[s['reason'] for s in p[$pid]['streams']]")"
  check "$pid: promotions" "[(1, 0, 0)]" \
    "$(ask "sorted({(s['promotions'], s['demotions'], s['failovers']) for s in p[$pid]['streams']})")"
  for way in tx rx; do
    check "$pid: ${way}_bytes, each exact" "[$((100 * total))]" \
      "$(ask "sorted({s['tcp']['${way}_bytes'] + s['shm']['${way}_bytes'] for s in p[$pid]['streams']})")"
    check "$pid: ${way}_bytes over the lane" True \
      "$(ask "all(s['shm']['${way}_bytes'] >= 50000 for s in p[$pid]['streams'])")"
    check "$pid: ${way}_bytes of the process" $((300 * total)) \
      "$(ask "sum(l['${way}_bytes'] for l in p[$pid]['totals']['lanes'].values())")"
  done
  check "$pid: rings" True \
    "$(ask "all(s['ring']['tx_bytes'] == 262144 and s['ring']['tx_fill'] == 0 and s['credits']['left'] <= s['credits']['most'] > 0 for s in p[$pid]['streams'])")"
done
look "$client"
check "the peer's address" "['127.0.0.1:$port']" \
  "$(ask "sorted({s['peer'] for s in p[$client]['streams']})")"
ask "sorted(s['local'] for s in p[$client]['streams'])" >locals.txt
look "$server"
check "as the other end has it" "$(<locals.txt)" \
  "$(ask "sorted(s['peer'] for s in p[$server]['streams'])")"

# --- Text, rates, Prometheus ---------------------------------------------------
"$tool" stat --pid "$client" >text.txt
check "lines of text" 3 "$(grep -c "^chat/$client .* shm  *on_lane" text.txt)"
check "no colours in a file" 0 "$(grep -c $'\033' text.txt || true)"
echo 20000 >&"${talk[1]}"
"$tool" stat --pid "$client" --over 0.2 --json >json.txt
read -r -t 60 _ <&"${talk[0]}"
check "rates" True \
  "$(ask "all(s['rate']['tx_bytes_per_second'] > 0 for s in p[$client]['streams'])")"
"$tool" stat --pid "$client" --prometheus >prom.txt
check "Prometheus: a gauge" 1 \
  "$(grep -c "^rcsock_open_streams{program=\"chat\",pid=\"$client\",lane=\"shm\"} 3$" prom.txt)"
check "Prometheus: its type" 1 \
  "$(grep -c '^# TYPE rcsock_sent_bytes_total counter$' prom.txt)"
timeout 2 "$tool" stat --pid "$client" --json --watch 0.1 >watch.txt || true
check "--watch: several objects, a line each" True \
  "$(python3 -c 'import json; print(len([json.loads(l) for l in open("watch.txt")]) > 3)')"

# --- Of one program --------------------------------------------------------------
for name in chat 'ch?t' 'cha*'; do
  "$tool" stat --json --program "$name" >json.txt
  check "--program $name" True "$(ask "$client in p and $server in p")"
done
"$tool" stat --json --program chat --pid "$client" >json.txt
check "--program and --pid" "[$client]" "$(ask 'list(p)')"
status=0
"$tool" stat --program hat >out.txt 2>err.txt || status=$?
check "--program of none: status" 1 "$status"
check "--program of none: one line" 1 "$(wc -l <err.txt)"

# --- A process that is stopped -------------------------------------------------
kill -STOP "$server"
until grep -q '^State:.*stopped' "/proc/$server/status"; do :; done
begin=${EPOCHREALTIME/./}
look "$server"
took=$((${EPOCHREALTIME/./} - begin))
check "stopped: status" 3 "$status"
check "stopped: in time" 1 $((took < 5000000))
check "stopped: said so" "it is stopped" "$(ask "p[$server]['trouble']")"
check "stopped: what the kernel knows" "3 None" \
  "$(ask "str(len(p[$server]['streams'])) + ' ' + str(p[$server]['streams'][0]['lane'])")"
look "$client"
check "stopped: the other one answers" 0 "$status"
# More readers than its queue has room for.
for ((i = 0; i < 20; i++)); do
  "$tool" stat --timeout 20 >/dev/null || true
done
look "$server"
check "stopped, its queue full: status" 3 "$status"
kill -CONT "$server"
for ((i = 0; i < 50; i++)); do
  look "$server"
  [[ $status == 0 ]] && break
done
check "goes on: it answers" 0 "$status"

# --- One that dies -------------------------------------------------------------
kill -KILL "$server"
wait "$server" 2>/dev/null || true
look "$server"
check "dead: status" 1 "$status"
check "dead: one line" 1 "$(wc -l <err.txt)"
# A connection that is over is not shown; one that is, says why.
for ((i = 0; i < 50; i++)); do
  look "$client"
  [[ $(ask "{s['lane'] for s in p[$client]['streams']} <= {'tcp'}") == True ]] && break
done
check "its peer: status" 0 "$status"
check "its peer's streams say why" True \
  "$(ask "{s['reason'] for s in p[$client]['streams']} <= {'peer_gone'}")"
exec {talk[1]}>&-
wait "$client" 2>/dev/null || true
rm port.txt

# --- On TCP, and why -------------------------------------------------------------
start tcp
rounds 5
look "$client"
check "on TCP: status" 0 "$status"
check "on TCP: from the kernel" kernel "$(ask "p[$client]['source']")"
check "on TCP: why" "[('tcp', 'policy')]" \
  "$(ask "sorted({(s['lane'], s['reason']) for s in p[$client]['streams']})")"
check "on TCP: bytes" "[500]" \
  "$(ask "sorted({s['tcp']['tx_bytes'] for s in p[$client]['streams']})")"
finish

# A value that is none means TCP as well.
start ib 2>/dev/null
rounds 5
look "$client"
check "RCSOCK_LANES=ib: why" "['policy']" \
  "$(ask "sorted({s['reason'] for s in p[$client]['streams']})")"
finish

# --- A Go program, whose calls do not pass libc ------------------------------------
# It has what Go's linker writes, and makes its calls itself.
cat >gopher.c <<'END'
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

__asm__(".section .note.go.buildid,\"a\",@note\n"
        ".balign 4\n.long 4, 4, 4\n.asciz \"Go\\0\"\n.ascii \"id!!\"\n.previous");

static long call(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return result;
}

int main(void) {
  struct sockaddr_in to = {.sin_family = AF_INET};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  long server = call(SYS_socket, AF_INET, SOCK_STREAM, 0);
  call(SYS_bind, server, (long)&to, sizeof to);
  call(SYS_listen, server, 1, 0);
  unsigned length = sizeof to;
  call(SYS_getsockname, server, (long)&to, (long)&length);
  long client = call(SYS_socket, AF_INET, SOCK_STREAM, 0);
  call(SYS_connect, client, (long)&to, sizeof to);
  call(SYS_write, 1, (long)"ready\n", 6);
  call(SYS_pause, 0, 0, 0);
}
END
cc -o gopher gopher.c
"$tool" run -- ./gopher >port.txt 2>/dev/null &
client=$!
for ((i = 0; i < 1000; i++)); do
  [[ -s port.txt ]] && break
  sleep 0.01
done
look "$client"
check "Go: why" "['raw_calls']" "$(ask "sorted({s['reason'] for s in p[$client]['streams']})")"
kill -KILL "$client" && wait "$client" 2>/dev/null || true
rm -f port.txt

# --- Under the preload by another name ---------------------------------------------
ours=$RCSOCK_PRELOAD
cp "$ours" renamed.so
RCSOCK_PRELOAD=$tmp/renamed.so
start tcp
rounds 5
look "$client"
check "renamed: from the kernel" kernel "$(ask "p[$client]['source']")"
RCSOCK_PRELOAD=$ours
finish
check "renamed: not twice" "LD_PRELOAD=$ours" \
  "$(LD_PRELOAD=$tmp/renamed.so "$tool" run -- env | grep ^LD_PRELOAD=)"

# --- Seen from a shell under `rcsock run` ------------------------------------------
start auto
rounds 5
# The thread that answers starts with the first search, beside the program.
for one in "$server" "$client"; do
  for ((i = 0; i < 500; i++)); do
    look "$one"
    [[ $status == 0 ]] && break
    sleep 0.01
  done
done
# It is such a process itself by then, which has no thread to answer with.
status=0
timeout 20 "$tool" run -- "$tool" stat --json >json.txt || status=$?
check "under rcsock run: status" 0 "$status"
check "under rcsock run: not itself" "[]" \
  "$(ask "[one['pid'] for one in j['processes'] if one['program'] == 'rcsock']")"
# What is closed has no line any more, but a reason.
"$chat" connect "$port" 1 <<<20 >/dev/null
"$tool" stat --pid "$server" >text.txt
check "closed, and never on a lane: why" 1 \
  "$(grep -cE "^chat/$server: .*; never on a lane: .*[1-9] (peer_without_rcsock|short_lived)" text.txt || true)"
check "numbers of one" 0 "$(grep -cE '[ :]1 (streams|demotions|failovers)' text.txt || true)"
finish

# --- The log says it while the connection lives ---------------------------------------
"$chat" serve >port.txt &
server=$!
for ((i = 0; i < 1000; i++)); do
  [[ -s port.txt ]] && break
  sleep 0.01
done
mkfifo lines
"$tool" run --log 1 -- "$chat" connect "$(<port.txt)" 1 <lines >/dev/null 2>err.txt &
client=$!
exec {lines}>lines
for ((i = 0; i < 1000; i++)); do
  echo 20 >&"$lines"
  grep -q 'no lane' err.txt && break
  sleep 0.01
done
exec {lines}>&-
wait "$client"
check "--log 1: why there is no lane" 1 \
  "$(grep -c 'fd [0-9]*: no lane: peer_without_rcsock$' err.txt || true)"
kill "$server" && wait "$server" || true
rm -f port.txt

# --- Standard output that takes nothing ---------------------------------------------
if [[ -w /dev/full ]]; then
  status=0
  "$tool" stat >/dev/full 2>err.txt || status=$?
  check "stdout full: status" 1 "$status"
  check "stdout full: why" "rcsock: cannot write: No space left on device" "$(<err.txt)"
fi

# --- Processes that lie ----------------------------------------------------------
for mode in silent garbage file count holes version linger stubborn; do
  "$chat" fake "$mode" >fake.txt &
  liar=$!
  for ((i = 0; i < 1000; i++)); do
    [[ -s fake.txt ]] && break
    sleep 0.01
  done
  if [[ $(<fake.txt) == none ]]; then
    echo "SKIPPED: $mode: cannot be made here"
    rm fake.txt
    continue
  fi
  begin=${EPOCHREALTIME/./}
  look "$liar"
  check "$mode: status" 3 "$status"
  check "$mode: in time" 1 $((${EPOCHREALTIME/./} - begin < 5000000))
  # (The one that lingers has connections of its own.)
  [[ $mode == linger ]] ||
    check "$mode: no streams" "0" "$(ask "len(p[$liar]['streams'])")"
  kill -KILL "$liar"
  wait "$liar" 2>/dev/null || true
  rm fake.txt
done

# --- More that are silent than are asked at one time ------------------------------
start auto
for ((i = 0; i < 200; i++)); do
  rounds 20
  look "$client"
  [[ $(ask "p[$client]['source']") == process ]] && break
done
# Names that come before those of processes.
python3 -c '
import signal, socket
all = []
for i in range(300):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind(f"\0rcsock/1/stat/!{i:03}")
    s.listen(8)
    all.append(s)
print("ready", flush=True)
signal.pause()' >fake.txt &
crowd=$!
for ((i = 0; i < 1000; i++)); do
  [[ -s fake.txt ]] && break
  sleep 0.01
done
begin=${EPOCHREALTIME/./}
status=0
"$tool" stat --json --timeout 1000 >json.txt 2>err.txt || status=$?
check "a crowd: status" 3 "$status"
check "a crowd: in time" 1 $((${EPOCHREALTIME/./} - begin < 8000000))
check "a crowd: it answers" process "$(ask "p[$client]['source']")"
kill -KILL "$crowd"
wait "$crowd" 2>/dev/null || true
rm fake.txt
finish

# --- One whose thread could not be started ------------------------------------------
# It is not for want of traffic that it is on TCP.
cat >few.py <<'END'
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
for _ in range(1000):
    one.sendall(100 * b"x")
    other.recv(100, socket.MSG_WAITALL)
print("done", flush=True)
sys.stdin.read()
END
mkfifo hold_few
(ulimit -n 7 && exec "$tool" run -- python3 few.py <hold_few >few.txt) &
few=$!
exec {hold}>hold_few
for ((i = 0; i < 1000; i++)); do
  [[ -s few.txt ]] && break
  sleep 0.01
done
look "$few"
check "no thread: the reason" "[None, None]" "$(ask "[s['reason'] for s in p[$few]['streams']]")"
"$tool" stat --pid "$few" >text.txt || true
check "no thread: where it is said" 2 "$(grep -c '?: .rcsock run --log 1. says why' text.txt || true)"
exec {hold}>&-
wait "$few"

# --- One in another network namespace ---------------------------------------------
if unshare -rn true 2>/dev/null; then
  mkfifo hold
  unshare -rn "$tool" run -- cat hold &
  other=$!
  exec {hold}>hold  # cat has opened it, so it is there
  "$tool" stat --json >json.txt || true
  check "another namespace: known" none "$(ask "p[$other]['source']")"
  "$tool" stat --prometheus >prom.txt || true
  check "another namespace: nothing of it for Prometheus" 0 \
    "$(grep -c "pid=\"$other\"" prom.txt || true)"
  exec {hold}>&-
  wait "$other"
else
  echo "NOT TESTED: another network namespace, which may not be made here"
fi

# --- Wrong options ---------------------------------------------------------------
for bad in "--watch 0" "--watch x" "--over 1 --watch 1" "--pid 0" "--pid x" \
  "--timeout 0" "--json --prometheus" "--nonsense" "word"; do
  status=0
  # shellcheck disable=SC2086  # a list of words
  "$tool" stat $bad >out.txt 2>err.txt || status=$?
  check "stat $bad: status" 2 "$status"
  check "stat $bad: one line" 1 "$(wc -l <err.txt)"
done

exit "$failed"
