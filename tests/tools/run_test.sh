#!/bin/bash
# usage: run_test RCSOCK PROBE LOADER
#
# `rcsock run`: where it finds the library, what it puts into the environment,
# its exit statuses and its messages.
set -euo pipefail
tool=$PWD/$1 probe=$(realpath "$2") loader=$(realpath "$3")
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/run.XXXXXX")
cd "$tmp"
unset LD_PRELOAD "${!RCSOCK_@}" RUNFILES_DIR || true
export XDG_CONFIG_HOME=$tmp/no-config

failed=0
# check NAME EXPECTED ACTUAL
check() {
  [[ $3 == "$2" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  failed=1
}
# run ARGS...: sets status, out and err
run() {
  status=0
  "$rcsock" "$@" >out.txt 2>err.txt || status=$?
  out=$(<out.txt) err=$(<err.txt)
}
one_line() { check "$1: one line on stderr" 1 "$(wc -l <err.txt)"; }

# --- Where the library is -----------------------------------------------------
mkdir -p beside prefix/bin prefix/lib "with space"
cp "$tool" beside/rcsock && cp "$probe" beside/
cp "$tool" prefix/bin/rcsock && cp "$probe" prefix/lib/
name=librcsock_preload.so

for place in beside/rcsock:beside/$name prefix/bin/rcsock:prefix/lib/$name; do
  rcsock=$tmp/${place%:*}
  run run -- env
  check "$place: status" 0 "$status"
  check "$place: LD_PRELOAD" "LD_PRELOAD=$tmp/${place#*:}" \
    "$(grep ^LD_PRELOAD= out.txt)"
  check "$place: loaded" "PROBE_LOADED=yes" "$(grep ^PROBE_LOADED= out.txt)"
done

ln -s ../prefix/bin/rcsock beside/link
rcsock=$tmp/beside/link
run run -- env
check "by a link: LD_PRELOAD" "LD_PRELOAD=$tmp/prefix/lib/$name" \
  "$(grep ^LD_PRELOAD= out.txt)"

rcsock=$tmp/alone/rcsock
mkdir alone && cp "$tool" alone/rcsock
run run -- true
check "no library: status" 1 "$status"
one_line "no library"
RCSOCK_PRELOAD=/nonexistent.so run run -- true
check "wrong RCSOCK_PRELOAD: status" 1 "$status"
one_line "wrong RCSOCK_PRELOAD"
cp "$probe" "with space/"
RCSOCK_PRELOAD="with space/$name" run run -- true
check "a space in the path: status" 1 "$status"

export RCSOCK_PRELOAD=prefix/lib/$name
run run -- env
check "RCSOCK_PRELOAD: absolute" "LD_PRELOAD=$tmp/prefix/lib/$name" \
  "$(grep ^LD_PRELOAD= out.txt)"

# --- What the command gets ----------------------------------------------------
cp "$probe" other.so
LD_PRELOAD=$tmp/other.so run run -- env
check "prepended" "LD_PRELOAD=$tmp/prefix/lib/$name:$tmp/other.so" \
  "$(grep ^LD_PRELOAD= out.txt)"
run run -- "$rcsock" run -- env
check "nested" "LD_PRELOAD=$tmp/prefix/lib/$name" \
  "$(grep ^LD_PRELOAD= out.txt)"
# One library of ours, and what else there is.
LD_PRELOAD=$tmp/other.so:/elsewhere/$name:$tmp/third.so run run -- env
check "another of ours" "LD_PRELOAD=$tmp/prefix/lib/$name:$tmp/other.so:$tmp/third.so" \
  "$(grep ^LD_PRELOAD= out.txt)"
LD_PRELOAD=$tmp/other.so:$tmp/prefix/lib/$name run run -- env
check "there already" "LD_PRELOAD=$tmp/other.so:$tmp/prefix/lib/$name" \
  "$(grep ^LD_PRELOAD= out.txt)"
# AddressSanitizer's runtime ends a program in which it is not the first.
LD_PRELOAD=$tmp/libasan.so.8:$tmp/third.so run run -- env
check "behind ASan" \
  "LD_PRELOAD=$tmp/libasan.so.8:$tmp/prefix/lib/$name:$tmp/third.so" \
  "$(grep ^LD_PRELOAD= out.txt)"

for lanes in shm,rdma rdma,shm auto; do
  run run --lanes="$lanes" -- env
  check "--lanes=$lanes" "RCSOCK_LANES=$lanes" "$(grep ^RCSOCK_LANES= out.txt)"
done
RCSOCK_LANE=tcp run run -- "$rcsock" run -- true
check "an unknown variable is named, once" \
  "rcsock: warning: RCSOCK_LANE is set, which means nothing to rcsock (rcsock-run(1) has the variables)" "$err"
run run --lanes=shm --stats=out/%p.json --log 2 -- env
check "--lanes" RCSOCK_LANES=shm "$(grep ^RCSOCK_LANES= out.txt)"
check "--stats" "RCSOCK_STATS=$tmp/out/%p.json" \
  "$(grep ^RCSOCK_STATS= out.txt)"
check "--log" RCSOCK_LOG=2 "$(grep ^RCSOCK_LOG= out.txt)"
RCSOCK_STATS=%p.json run run -- env
check "RCSOCK_STATS: absolute" "RCSOCK_STATS=$tmp/%p.json" \
  "$(grep ^RCSOCK_STATS= out.txt)"
run run --log-file=log.%p -- env
check "--log-file" "RCSOCK_LOG_FILE=$tmp/log.%p" \
  "$(grep ^RCSOCK_LOG_FILE= out.txt)"
check "--log-file: the level" RCSOCK_LOG=1 "$(grep ^RCSOCK_LOG= out.txt)"
run run --log=0 --log-file=log -- env
check "--log-file and a level" RCSOCK_LOG=0 "$(grep ^RCSOCK_LOG= out.txt)"
RCSOCK_LOG=2 RCSOCK_LOG_FILE=log run run --log-file=other -- env
check "--log-file and the environment's level" RCSOCK_LOG=2 \
  "$(grep ^RCSOCK_LOG= out.txt)"
check "--log-file over the environment's" "RCSOCK_LOG_FILE=$tmp/other" \
  "$(grep ^RCSOCK_LOG_FILE= out.txt)"
RCSOCK_LOG_FILE=log run run -- env
check "RCSOCK_LOG_FILE: absolute" "RCSOCK_LOG_FILE=$tmp/log" \
  "$(grep ^RCSOCK_LOG_FILE= out.txt)"
run run -- env
check "nothing asked, nothing set" "" \
  "$(grep -E '^RCSOCK_(LANES|STATS|LOG|LOG_FILE)=' out.txt || true)"
RCSOCK_LANES=tcp run run -- env
check "the environment's stays" RCSOCK_LANES=tcp \
  "$(grep ^RCSOCK_LANES= out.txt)"

run run -- printf '%s,' a -- -b --log "c d" ""
check "arguments after --" "a,--,-b,--log,c d,," "$out"
run run printf '%s,' a -b --log "c d"
check "arguments without --" "a,-b,--log,c d," "$out"
run run --log 0 -- sh -c 'echo $0' zero
check "argv" zero "$out"

# --- Exit statuses and messages -----------------------------------------------
run run -- sh -c 'exit 7'
check "the command's status" 7 "$status"
run run -- sh -c 'kill -TERM $$'
check "the command's signal" 143 "$status"
run run -- no-such-command
check "not found: status" 127 "$status"
one_line "not found"
run run -- ./no/such/file
check "no such file: status" 127 "$status"
printf '#!/no/such/interpreter\n' >badscript && chmod +x badscript
run run -- ./badscript
check "no interpreter: status" 127 "$status"
check "no interpreter: said" "rcsock: ./badscript: its interpreter is not there" "$err"
: >plain.txt
run run -- ./plain.txt
check "not executable: status" 126 "$status"
one_line "not executable"
run run -- "$tmp"
check "a directory: status" 126 "$status"

for bad in "" "run" "run --" "run --lanes=ib -- true" "run --lanes=shm, -- true" "run --lanes=tcp,shm -- true" "run --lanes= -- true" "run --log 9 -- true" \
  "run --log x -- true" "run --nonsense -- true" "walk -- true" \
  "run --stats=/$(printf 'x%.0s' {1..300}) -- true"; do
  # shellcheck disable=SC2086  # a list of words
  run $bad
  check "rcsock $bad: status" 2 "$status"
  check "rcsock $bad: stdout" "" "$out"
  one_line "rcsock $bad"
done

run run --nonsense -- true
check "an unknown option is named" \
  "rcsock: there is no option --nonsense (see \`rcsock run --help\`)" "$err"
run run -x
check "wrong option alone: message" \
  "rcsock: there is no option -x (see \`rcsock run --help\`)" "$err"
run stat word
check "a word too many is named" \
  "rcsock: word is one word too many (see \`rcsock stat --help\`)" "$err"
for users in 4294967295 99999999999999999999 0,-1 no-such-user; do
  run run --peers "$users" -- true
  check "--peers $users: status" 2 "$status"
  one_line "--peers $users"
done
run run --peers 0,4294967294 -- env
check "--peers" RCSOCK_PEERS=0,4294967294 "$(grep ^RCSOCK_PEERS= out.txt)"

for option in --stats --log-file --config; do
  for word in "" --; do
    run run "$option" "$word" true
    check "$option '$word', without a name: status" 2 "$status"
    one_line "$option '$word', without a name"
  done
done
[[ ! -e -- ]] || check "a file of this name" no yes

run --version
check "--version: status" 0 "$status"
[[ $out == "rcsock "[0-9]* ]] || check "--version" "rcsock N" "$out"
for help in "--help" "run --help"; do
  # shellcheck disable=SC2086
  run $help
  check "$help: status" 0 "$status"
  [[ $out == *run* ]] || check "$help" "... run ..." "$out"
done

if [[ -w /dev/full ]]; then
  status=0
  "$rcsock" --help >/dev/full 2>err.txt || status=$?
  check "--help, stdout full: status" 1 "$status"
fi

# --- RDMA alone, and no device ------------------------------------------------
if compgen -G '/sys/class/infiniband_verbs/uverbs*' >/dev/null; then
  run run --lanes=rdma -- true
  check "RDMA alone, and a device: no warning" "" "$err"
else
  for how in option variable; do
    if [[ $how == option ]]; then
      run run --lanes=rdma -- sh -c 'exit 4'
    else
      RCSOCK_LANES=rdma run run -- sh -c 'exit 4'
    fi
    check "RDMA alone, no device ($how): status" 4 "$status"
    check "RDMA alone, no device ($how)" 1 \
      "$(grep -c 'warning: there is no RDMA device' err.txt || true)"
  done
  run run --lanes=auto -- true
  check "no device: no warning" "" "$err"
fi

# --- Programs that the loader does not preload into ---------------------------
run run -- true
check "a dynamic program: no warning" "" "$err"
printf '#!/bin/sh\nexit 3\n' >script && chmod +x script
run run -- ./script
check "a script: status" 3 "$status"
check "a script: no warning" "" "$err"

# An ELF header without program headers: as much as a static program shows.
printf '\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0' >static
head -c 40 /dev/zero >>static
chmod +x static
run run -- ./static
check "a static program: warned" 1 \
  "$(grep -c 'warning: ./static is statically linked' err.txt || true)"

# What Go's linker writes into its programs.
cat >gopher.c <<'END'
__asm__(".section .note.go.buildid,\"a\",@note\n"
        ".balign 4\n.long 4, 4, 4\n.asciz \"Go\\0\"\n.ascii \"id!!\"\n.previous");
int main(void) { return 5; }
END
cc -o gopher gopher.c
run run -- ./gopher
check "a Go program: status" 5 "$status"
check "a Go program: warned" \
  "rcsock: warning: ./gopher is a Go program: its calls do not pass libc, and it runs over plain TCP" "$err"

# --- Lanes that are required ----------------------------------------------------
# no_lanes NAME WHY ARGS...: the command does not run, and one line says why
no_lanes() {
  local name=$1 why=$2
  shift 2
  run run --require-lanes "$@"
  check "--require-lanes, $name: status" 125 "$status"
  check "--require-lanes, $name: not run" "" "$out"
  one_line "--require-lanes, $name"
  [[ $err == *"$why"* ]] || check "--require-lanes, $name: why" "... $why ..." "$err"
}
no_lanes "static" "./static is statically linked" -- ./static
no_lanes "Go" "./gopher is a Go program" -- ./gopher
no_lanes "--lanes=tcp" "RCSOCK_LANES=tcp allows none" --lanes=tcp -- echo ran
RCSOCK_RULES='lanes=tcp' no_lanes "rules" "allows none" -- echo ran
# The library here is none of rcsock's: no lane opens.
no_lanes "no lane opens" "no lanes: " -- echo ran
echo 'lanes = "ib"' >bad.toml
no_lanes "a wrong configuration" "bad.toml:1: " --config bad.toml -- echo ran
compgen -G '/sys/class/infiniband_verbs/uverbs*' >/dev/null ||
  no_lanes "no device" "there is no RDMA device" --lanes=rdma -- echo ran
run run --require-lanes -- no-such-command
check "--require-lanes, not found: status" 127 "$status"

# A program of another libc: its loader says whether it has found a preload, as
# musl's does by ending with status 127.
python3 - "$loader" >other <<'END'
import struct, sys
name = sys.argv[1].encode() + b"\0"
out = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, 0, 64, 0, 0,
                  64, 56, 2, 0, 0, 0)
out += struct.pack("<IIQQQQQQ", 3, 4, 176, 0, 0, len(name), len(name), 1)
out += struct.pack("<IIQQQQQQ", 1, 4, 0, 0x400000, 0, 176, 176, 4096)
sys.stdout.buffer.write(out + name)
END
chmod +x other
run run -- ./other </dev/null
check "another loader's program: status" 0 "$status"
check "another loader's program: warned" 1 \
  "$(grep -c "warning: ./other is loaded by $loader" err.txt || true)"
printf '#!./other\n' >script && chmod +x script
run run -- ./script </dev/null
check "its script: status" 0 "$status"
check "its script: warned" 1 \
  "$(grep -c "warning: ./script is loaded by $loader" err.txt || true)"

# A glibc that is too old is beside its loader.
mkdir old
cp "$(realpath /lib64/ld-linux-x86-64.so.2)" old/ld-2.12.so
ln -s ld-2.12.so old/ld-linux-x86-64.so.2
echo 'int main(void) { return 0; }' >aged.c
cc -o aged aged.c -Wl,--dynamic-linker="$PWD/old/ld-linux-x86-64.so.2"
for version in 2.12 2.17; do
  echo "GLIBC_2.2.5 { }; GLIBC_$version { f; };" >versions
  echo 'void f(void) {}' | cc -shared -fPIC -nostdlib -o old/libc.so.6 -xc - \
    -Wl,-soname,libc.so.6 -Wl,--version-script=versions
  run run -- ./aged
  check "glibc $version: status" 0 "$status"
  check "glibc $version: warned" "$([[ $version == 2.12 ]] && echo 1 || echo 0)" \
    "$(grep -c 'warning: ./aged is loaded by .* of a glibc without GLIBC_2.17' err.txt || true)"
done

if [[ $(id -u) == 0 ]] && cp "$(type -P true)" setuid &&
  chown 12345 setuid 2>/dev/null && chmod 4755 setuid; then
  run run -- ./setuid
  check "a set-uid program: status" 0 "$status"
  check "a set-uid program: warned" 1 \
    "$(grep -c 'warning: ./setuid is set-uid' err.txt || true)"
else
  echo "not root: set-uid not tested"
fi

exit "$failed"
