#!/bin/bash
# usage: doctor_test RCSOCK PRELOAD
#
# `rcsock doctor` on this host: the loop through the shm lane, a peer that
# listens, peers that do not.
set -euo pipefail
tool=$(realpath "$1")
RCSOCK_PRELOAD=$(realpath "$2")
export RCSOCK_PRELOAD
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/doctor.XXXXXX")
cd "$tmp"
unset LD_PRELOAD RCSOCK_LANES RCSOCK_STATS RCSOCK_LOG RCSOCK_LOG_FILE
export XDG_CONFIG_HOME=$tmp/config
trap 'jobs -p | xargs -r kill -KILL 2>/dev/null; wait 2>/dev/null || true' EXIT
port=${DOCTOR_PORT:-25900}

failed=0
# check NAME EXPECTED ACTUAL
check() {
  [[ $3 == "$2" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  cat out.txt err.txt
  failed=1
}
# doctor ARGS...: sets status; out.txt, err.txt
doctor() {
  status=0
  "$tool" doctor "$@" >out.txt 2>err.txt || status=$?
}
# has NAME PATTERN
has() { check "$1" 1 "$(grep -cE "$2" out.txt || true)"; }

doctor
has "the shm loop" '^ok +shm lane +lane shm open .* 500 round trips verified'
if [[ ! -e /sys/class/infiniband ]] || [[ -z $(ls /sys/class/infiniband) ]]; then
  check "healthy without a device: status" 0 "$status"
  has "no device" '^note +devices '
  has "... and how to get one" 'mend: .*rdma link add'
fi

# Counters and places of devices, of a sysfs that is made up.
made=sys/class/infiniband/mlx5_9
mkdir -p "$made/ports/1/hw_counters" "$made/device"
echo 7 >"$made/ports/1/hw_counters/out_of_sequence"
echo 0 >"$made/ports/1/hw_counters/rnr_nak_retry_err"
echo 3 >"$made/device/numa_node"
echo 1000 >"$made/device/local_cpulist"
SYSFS_PATH=$tmp/sys doctor
has "a lossy port" '^warn +mlx5_9 port 1 +since its driver was loaded, for all programs: 7 out of sequence$'
has "a lossy port: what to look at" 'mend: .*PFC, ECN .*docs/install.md'
has "a device far away" '^warn +mlx5_9 +on NUMA node 3, CPUs 1000; near are 0 of the [0-9]+ CPUs'
has "a device far away: what helps" 'mend: numactl --cpunodebind=3'
SYSFS_PATH=$tmp/sys doctor --json
check "a lossy port: JSON" warn "$(python3 -c '
import json
print(*(f["verdict"] for f in json.load(open("out.txt"))["findings"] if f["about"] == "mlx5_9 port 1"))')"

"$tool" doctor --listen --port "$port" >listen.txt 2>&1 &
listener=$!
for ((i = 0; i < 1000; i++)); do
  [[ -s listen.txt ]] && break
  sleep 0.01
done
doctor "127.0.0.1:$port"
has "a peer" '^ok +to 127.0.0.1 +lane shm open .* 500 round trips verified'
has "... and TCP beside it" '^(ok|warn) +to 127.0.0.1 +over TCP a round trip takes [0-9.]+ us'
doctor --json "127.0.0.1:$port"
check "JSON" True "$(python3 -c '
import json
j = json.load(open("out.txt"))
one = [f for f in j["findings"] if f["about"] == "to 127.0.0.1"]
print(len(one) == 2 and one[0]["verdict"] == "good" and "TCP" in one[1]["words"])')"
RCSOCK_LANES=tcp doctor "localhost:$port"
check "no lane: status" 1 "$status"
has "no lane: why" '^BAD +to localhost +no lane: .*\(policy\)'
check "no lane: how to mend it" 2 "$(grep -c 'mend: RCSOCK_LANES=tcp keeps it away' out.txt || true)"
# A cluster key, and files that are none.
head -c 31 /dev/zero >key && chmod 600 key
RCSOCK_KEY_FILE=$tmp/key doctor
has "a key of 31 bytes" "^BAD +key file +$tmp/key has 31 bytes, and 32 are needed"
head -c 32 /dev/zero >key
RCSOCK_KEY_FILE=$tmp/key doctor
has "a key of 32 bytes" "^ok +key file +$tmp/key, 32 bytes"
chmod 644 key
RCSOCK_KEY_FILE=$tmp/key doctor
has "a key that all can read" "^warn +key file +every user can read $tmp/key"

mkfifo pipe
for bad in nowhere . pipe; do
  RCSOCK_KEY_FILE=$tmp/$bad doctor
  check "$bad as a key: status" 1 "$status"
  has "$bad as a key" "^BAD +key file .*$bad.*: no RDMA lanes"
done
# What the user has set holds in the loop, too.
for lanes in tcp rdma; do
  RCSOCK_LANES=$lanes doctor
  check "RCSOCK_LANES=$lanes: status" 1 "$status"
  has "RCSOCK_LANES=$lanes: said" "^note +environment +RCSOCK_LANES=$lanes is set"
  has "RCSOCK_LANES=$lanes: the loop" '^BAD +shm lane '
  has "RCSOCK_LANES=$lanes: why" "mend: RCSOCK_LANES=$lanes keeps it away"
done
RCSOCK_LANE=tcp RCSOCK_SPIN_US=50 doctor
has "a variable that is none" '^warn +environment +RCSOCK_LANE is set, which means nothing'
has "one that is" '^note +environment +RCSOCK_SPIN_US=50 is set$'
RCSOCK_LANES=auto doctor
has "RCSOCK_LANES=auto: the loop" '^ok +shm lane +lane shm open'
# Other preloads stay: this one, which is missing, the loader tells of each time.
LD_PRELOAD=$RCSOCK_PRELOAD:/nowhere/other.so doctor
has "another preload: the loop" '^ok +shm lane +lane shm open'
check "another preload: in the probes" 1 "$(($(grep -c '/nowhere/other.so' err.txt) > 2))"
# Too few descriptors to ask the own thread: this is said, and what helps.
(ulimit -n 12 && doctor; exit "$status") || status=$?
check "12 descriptors: status" 1 "$status"
has "12 descriptors: said" '^warn +descriptors '
has "12 descriptors: the loop" '^BAD +shm lane +no lane: .*(could not be started, or asked|no_fds)'
has "12 descriptors: how to mend it" 'mend: ulimit -n 65536(; ulimit -u unlimited)?$'
# No /proc: the program finds itself, and the library.
if unshare -rm mount -t tmpfs none /proc 2>/dev/null; then
  cp "$tool" rcsock && cp "$RCSOCK_PRELOAD" librcsock_preload.so
  said=$(env -u RCSOCK_PRELOAD unshare -rm sh -c 'mount -t tmpfs none /proc && cd / &&
    "$0/rcsock" run -- sh -c "echo \$LD_PRELOAD"' "$tmp" 2>&1) || true
  check "no /proc: run" "$tmp/librcsock_preload.so" "$said"
fi
# The configuration files hold as they do for `rcsock run`.
mkdir config
conf=$XDG_CONFIG_HOME/rcsock.conf
for setting in 'lanes = "tcp"' 'promote = "never"'; do
  printf 'spin_us = 50\n[[rule]]\n%s\n' "$setting" >"$conf"
  doctor "127.0.0.1:$port"
  check "$setting: status" 1 "$status"
  has "$setting: said" "^note +configuration +2 rules, of $conf"
  has "$setting: the loop" '^BAD +shm lane +no lane: .*\(policy\)'
  has "$setting: a peer" '^BAD +to 127.0.0.1 +no lane: .*\(policy\)'
  check "$setting: which rule" 2 "$(grep -c "mend: $conf:2 keeps it away" out.txt || true)"
done
cat >"$conf" <<END
[[rule]]
port = $port
lanes = "tcp"
[[rule]]
program = "redis-server"
lanes = "rdma"
END
doctor "127.0.0.1:$port"
has "a rule of a port: the loop" '^ok +shm lane +lane shm open'
has "a rule of a port: a peer" '^BAD +to 127.0.0.1 +no lane: .*\(policy\)'
has "a rule of a port: which" "mend: $conf:1 keeps it away"
echo 'promote = "adaptive"' >"$conf"
doctor "127.0.0.1:$port"
has "adaptive: the loop" '^ok +shm lane +lane shm open'
has "adaptive: a peer" '^ok +to 127.0.0.1 +lane shm open'
printf 'spin_us = 50\nlanes = "ib"\n' >"$conf"
doctor "127.0.0.1:$port"
check "a malformed file: status" 1 "$status"
has "a malformed file: said" "^BAD +configuration +$conf:2: .*: programs run over plain TCP"
has "a malformed file: a peer" '^BAD +to 127.0.0.1 +no lane: .*\(policy\)'
rm "$conf"
doctor --listen --port "$port"
check "busy port: status" 1 "$status"
check "busy port: one line" 1 "$(wc -l <err.txt)"
kill -KILL "$listener"
wait "$listener" 2>/dev/null || true

doctor "127.0.0.1:$port"
check "nobody listens: status" 1 "$status"
has "nobody listens: how to mend it" 'mend: start `rcsock doctor --listen` there'
doctor "host.invalid"
check "unknown host: status" 1 "$status"
has "unknown host" '^BAD +to host.invalid'

# Something else listens there.
python3 -c '
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
print("ready", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b"220 mail.example ESMTP\r\n" + b" " * 100)
    c.close()' "$port" >other.txt &
other=$!
for ((i = 0; i < 1000; i++)); do
  [[ -s other.txt ]] && break
  sleep 0.01
done
doctor "127.0.0.1:$port"
check "something else: status" 1 "$status"
has "something else" '^BAD +to 127.0.0.1 '
kill "$other"
wait "$other" 2>/dev/null || true

# Where not even 127.0.0.1 is there.
if unshare -rn true 2>/dev/null; then
  status=0
  unshare -rn "$tool" doctor >out.txt 2>err.txt || status=$?
  check "no loopback: status" 1 "$status"
  has "no loopback: how to mend it" 'mend: ip link set lo up$'
fi

# A limit that no lane fits into.
status=0
(ulimit -f 1000 && exec "$tool" doctor) >out.txt 2>err.txt || status=$?
check "file size: status" 1 "$status"
has "file size" '^BAD +file size +files may have 1000 KiB'

for bad in "host:0" "host:x" "host:99999" "--port 5000" "--listen --port 0" \
  "--listen host" "--listen --json" "a b"; do
  # shellcheck disable=SC2086  # a list of words
  doctor $bad
  check "doctor $bad: status" 2 "$status"
  check "doctor $bad: one line" 1 "$(wc -l <err.txt)"
done

exit "$failed"
