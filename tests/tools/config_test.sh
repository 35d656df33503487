#!/bin/bash
# usage: config_test RCSOCK PRELOAD CHAT
#
# Configuration files of `rcsock run`: what they say, what holds, what is wrong.
set -euo pipefail
tool=$(realpath "$1") chat=$(realpath "$3")
preload=$(realpath "$2")
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/config.XXXXXX")
cd "$tmp"
unset LD_PRELOAD "${!RCSOCK_@}" || true
export RCSOCK_PRELOAD=$preload XDG_CONFIG_HOME=$tmp/xdg
trap 'jobs -p | xargs -r kill -KILL 2>/dev/null; wait 2>/dev/null || true' EXIT

failed=0
# check NAME EXPECTED ACTUAL
check() {
  [[ $3 == "$2" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  failed=1
}
# rules ARGS...: what a command gets; err.txt
rules() {
  "$tool" run "$@" -- sh -c 'echo "$RCSOCK_RULES|${RCSOCK_LANES-}"' 2>err.txt
}
# compiles NAME EXPECTED: the file config.toml
compiles() {
  check "$1" "$2|" "$(rules --config config.toml)"
  check "$1: nothing said" "" "$(<err.txt)"
}
# wrong NAME LINE PATTERN: the file config.toml
wrong() {
  check "$1: plain TCP" "|tcp" "$(rules --config config.toml)"
  check "$1: one line" 1 "$(wc -l <err.txt)"
  check "$1: it says where" 1 \
    "$(grep -cE "^rcsock: config.toml:$2: .*$3.*: running over plain TCP$" err.txt || true)"
}

# --- What files become -----------------------------------------------------------
check "no file: nothing set" "|" "$(rules)"
: >config.toml
compiles "an empty file" ""
# The directory that containers share is no rule.
meets() { "$tool" run --config config.toml "$@" -- sh -c 'echo "$RCSOCK_MEET_DIR"' 2>&1; }
echo 'meet_dir = "/run/meet"' >config.toml
compiles "meet_dir" ""
check "meet_dir: the variable" /run/meet "$(meets)"
check "meet_dir: the environment is first" /other "$(RCSOCK_MEET_DIR=/other meets)"
check "meet_dir: and so is the option" "$tmp/here" "$(meets --meet-dir here)"
echo 'meet_dir = "meet"' >config.toml
wrong "meet_dir that is relative" 1 "absolute path"
cat >config.toml <<'END'
# A comment.
promote = "adaptive"
lanes = ["shm", "rdma"]
spin_us = 50

[[rule]]
program = ["redis-server", "redis-*"]
address = ["10.0.0.0/8", "fd00::/16"]
port = [6379, "7000-7010"]
direction = "in"
lanes = "tcp"

[[rule]]
program = "nginx"
max_qps = 128
max_pinned = "64M"
END
ten=addr=00000000000000000000ffff0a000000/104
fd=addr=fd000000000000000000000000000000/16
all=$(rules --config config.toml)
for one in "$ten" "$fd" dir=in port=6379-6379 port=7000-7010 prog=redis-server \
  'prog=redis-\*' lanes=tcp; do
  check "a combination has $one" 1 "$(grep -cE "$one" <<<"$all" || true)"
done
check "all combinations" 10 "$(rules --config config.toml | tr ';' '\n' | wc -l)"
check "the rest" "max_pinned and what is outside of rules" \
  "$(rules --config config.toml | grep -qE ';prog=nginx,qps=128,pinned=67108864;|;prog=nginx,pinned=67108864,qps=128;' &&
    rules --config config.toml | grep -qE ';lanes=shm\+rdma,promote=adaptive,spin=50\|$' &&
    echo "max_pinned and what is outside of rules")"

cat >config.toml <<'END'
ack_timeout_ms = 1000
[[rule]]
port = 80
ack_retries = 7
traffic_class = 0x68
devices = ["mlx5_0", "mlx5_1:1", "-irdma*"]
END
compiles "what an RDMA lane is told" \
  "port=80-80,retries=7,devices=mlx5_0+mlx5_1:1+-irdma*,tclass=104;ack=1000"
echo 'devices = "-*"' >config.toml
compiles "one device" "devices=-*"

# As in the environment.
echo 'max_pinned = "64m"' >config.toml
compiles "small letters" "pinned=67108864"

mkdir xdg
echo 'promote = "eager"' >xdg/rcsock.conf
check "the user's file" "promote=eager|" "$(rules)"
check "--no-config" "|" "$(rules --no-config)"
check "a nested run" "promote=eager|" \
  "$("$tool" run -- "$tool" run -- sh -c 'echo "$RCSOCK_RULES|${RCSOCK_LANES-}"')"
rm xdg/rcsock.conf
mkdir -p home/.config
echo 'promote = "never"' >home/.config/rcsock.conf
check "~/.config" "promote=never|" "$(unset XDG_CONFIG_HOME && HOME=$tmp/home rules)"

# --- Lanes that are required ----------------------------------------------------------
# required STATUS TEXT...: what `rcsock run --require-lanes` says to a configuration
required() {
  printf '%s\n' "${@:2}" >config.toml
  local status=0
  "$tool" run --require-lanes --config config.toml -- true 2>err.txt || status=$?
  check "--require-lanes: ${*:2}: $(<err.txt)" "$1" "$status"
}
required 0 ''
required 0 'lanes = "shm"'
required 0 'lanes = "tcp"' '[[rule]]' 'port = 80' 'lanes = "shm"'
required 0 'promote = "never"' '[[rule]]' 'port = 80' 'promote = "eager"'
required 0 '[[rule]]' 'program = "false"' 'lanes = "tcp"'
required 125 'lanes = "tcp"'
required 125 'promote = "never"'
required 125 'promote = "never"' '[[rule]]' 'program = "false"' 'promote = "eager"'
required 125 '[[rule]]' 'program = "true"' 'lanes = "tcp"'
check "--require-lanes over the configuration" 0 \
  "$("$tool" run --require-lanes --config config.toml --lanes shm -- true; echo $?)"

# --- What is wrong ------------------------------------------------------------------
# case PATTERN TEXT: one line that is wrong, after another one
bad() {
  printf 'spin_us = 50\n%s\n' "$2" >config.toml
  wrong "$2" 2 "$1"
}
bad 'lanes' 'lanes = "ib"'
bad 'lanes' 'lanes = 5'
bad 'lanes' 'lanes = ["auto", "shm"]'
bad 'lanes' 'lanes = []'
bad 'promote' 'promote = "fast"'
bad 'spin_us|redefine|key' 'spin_us = -1'
bad 'max_qps' 'max_qps = "many"'
bad 'max_pinned' 'max_pinned = "64X"'
bad 'max_pinned' 'max_pinned = "8589934592G"'
bad 'max_pinned' 'max_pinned = "-1"'
bad 'max_ring' 'max_ring = "64X"'
bad 'max_ring is at least .16K.' 'max_ring = "15K"'
bad 'max_ring is at least .16K.' 'max_ring = 0'
bad 'ack_timeout_ms is a number from 1 to 8000 milliseconds' 'ack_timeout_ms = 0'
bad 'ack_timeout_ms is a number' 'ack_timeout_ms = 8001'
bad 'ack_timeout_ms is a number' 'ack_timeout_ms = "1s"'
bad 'ack_retries is a number from 1 to 7' 'ack_retries = 8'
bad 'ack_retries is a number' 'ack_retries = -1'
bad 'traffic_class is a number from 0 to 255' 'traffic_class = 256'
bad 'devices: "mlx5_0,mlx5_1" is no device, as "mlx5_0"' 'devices = "mlx5_0,mlx5_1"'
bad 'devices: "mlx5_0:0" is no device' 'devices = ["mlx5_1", "mlx5_0:0"]'
bad 'devices is an empty list' 'devices = []'
bad 'devices is a word in quotes' 'devices = 5'
bad '"colour" is not known' 'colour = "red"'
bad '"program" is not known' 'program = "x"'
bad '.' 'promote = '
bad '.' '[[rule'
bad 'rules are written' 'rule = 5'
rule() {
  printf '[[rule]]\nlanes = "tcp"\n%s\n' "$2" >config.toml
  wrong "$2" 3 "$1"
}
rule 'address' 'address = "10.0.0.0/33"'
rule 'address' 'address = "host"'
rule 'address' 'address = "10.0.0.0/"'
rule 'port' 'port = 0'
rule 'port' 'port = 65536'
rule 'port' 'port = "9-8"'
rule 'port' 'port = "http"'
rule 'direction' 'direction = "both"'
rule 'program' 'program = "/usr/bin/x"'
rule 'program' 'program = "a,b"'
rule '"colour" is not known' 'colour = "red"'
printf '[[rule]]\nport = 80\n' >config.toml
wrong "a rule that sets nothing" 1 "sets nothing"
printf '[[rule]]\nport = 80\nmax_qps = 5\n' >config.toml
wrong "of a process, not of a port" 3 "whole process"
python3 -c '
for i in range(9): print("[[rule]]\nport = %d\ndevices = \"%060d\"" % (i + 1, i))' >config.toml
check "too many lists of devices: plain TCP" "|tcp" "$(rules --config config.toml)"
check "too many lists of devices: one line" 1 \
  "$(grep -c '^rcsock: config.toml: the lists of devices have more than 512 characters together: running' err.txt || true)"
head -n 24 config.toml >few.toml
check "eight lists of devices" 8 "$(rules --config few.toml | grep -o devices= | wc -l)"
check "no such file: plain TCP" "|tcp" "$(rules --config nowhere.toml)"
check "no such file: one line" 1 "$(grep -c 'nowhere.toml: there is no such file' err.txt)"
mkdir directory.toml
check "a directory: plain TCP" "|tcp" "$(rules --config directory.toml)"
check "a directory: one line" 1 \
  "$(grep -c '^rcsock: directory.toml: it is not a regular file: running' err.txt || true)"
if [[ $(id -u) != 0 ]]; then
  : >secret.toml && chmod 0 secret.toml
  check "unreadable: plain TCP" "|tcp" "$(rules --config secret.toml)"
  check "unreadable: one line" 1 \
    "$(grep -c '^rcsock: secret.toml: Permission denied: running' err.txt || true)"
fi
status=0
"$tool" run --config config.toml -- sh -c 'exit 7' 2>/dev/null || status=$?
check "a wrong file: the command's status" 7 "$status"

# --- What holds ----------------------------------------------------------------------
# lane CONFIG: the lane of a connection whose both ends have it, and why
lane() {
  printf '%s\n' "$1" >config.toml
  "$tool" run --config config.toml -- "$chat" serve >port.txt &
  local server=$! i line
  for ((i = 0; i < 1000; i++)); do
    [[ -s port.txt ]] && break
    sleep 0.01
  done
  coproc talk { exec "$tool" run --config config.toml -- "$chat" connect "$(<port.txt)" 1; }
  local client=$talk_PID
  local end=$((SECONDS + 30))
  while ((SECONDS < end)); do
    echo "${2:-20}" >&"${talk[1]}"
    read -r -t 30 line <&"${talk[0]}"
    "$tool" stat --pid "$client" --json >stat.json
    got=$(python3 -c '
import json
for p in json.load(open("stat.json"))["processes"]:
  for s in p["streams"]: print(s["lane"], s["reason"])')
    # On a busy machine it is looked for again.
    [[ $got != "tcp "@(short_lived|pending|none|timeout|peer_gone) ]] && break
  done
  local write=${talk[1]}
  exec {write}>&-
  wait "$client" || true
  kill "$server"
  wait "$server" 2>/dev/null || true
  rm -f port.txt
}
lane 'lanes = "shm"'
check "shm" "shm none" "$got"
lane $'[[rule]]\nprogram = "ch*"\npromote = "never"'
check "a rule for the program" "tcp policy" "$got"
lane $'[[rule]]\nprogram = "other"\nlanes = "tcp"'
check "a rule for another one" "shm none" "$got"
lane $'lanes = "tcp"\n[[rule]]\naddress = "127.0.0.0/8"\nlanes = "shm"'
check "a rule for the address" "shm none" "$got"
lane $'[[rule]]\ndirection = "out"\nport = "1-65535"\nlanes = "tcp"'
check "a rule for connecting ends" "tcp policy" "$got"
RCSOCK_LANES=shm lane 'lanes = "tcp"'
check "the environment overrides" "shm none" "$got"

# rings: what the connecting end's `rcsock stat` says of its rings and its budget
rings() {
  python3 -c '
import json
p = json.load(open("stat.json"))["processes"][0]
s = p["streams"][0].get("ring", {})
print(s.get("tx_bytes"), s.get("rx_bytes"), p["totals"]["budget"]["max_ring"])'
}
lane 'max_ring = "64K"'
check "max_ring" "65536 65536 65536" "$(rings)"
lane $'[[rule]]\nprogram = "chat"\nmax_ring = 20000\n[[rule]]\nmax_ring = "1M"'
check "max_ring of a program, rounded down" "16384 16384 20000" "$(rings)"
RCSOCK_MAX_RING=32k lane 'max_ring = "64K"'
check "RCSOCK_MAX_RING overrides" "32768 32768 32768" "$(rings)"
RCSOCK_MAX_RING=15K lane 'lanes = "shm"' 2>err.txt
check "RCSOCK_MAX_RING too small: said" 2 \
  "$(grep -c 'RCSOCK_MAX_RING=15K is less than 16K: ignored' err.txt)"
check "RCSOCK_MAX_RING too small: ignored" "262144 262144 None" "$(rings)"

exit "$failed"
