# The client of pair_test.sh.
# shellcheck shell=bash
set -euo pipefail

fail() {
  echo "FAILED: $*"
  guestctl tell done
  exit 1
}
# tcp: an answer over TCP within 2 s
tcp() {
  timeout 2 perl -MIO::Socket -e '
    my $s = IO::Socket::INET->new(PeerAddr => "$ENV{PEER_IP}:7177") or exit 1;
    print $s "x\n"; exit(<$s> ne "x\n")'
}
count() { wc -l <"$log"; }
# moves: more lines in the log of rping, within 10 s
moves() {
  local before i
  before=$(count)
  for ((i = 0; i < 500; i++)); do
    (($(count) > before + 10)) && return
    sleep 0.02
  done
  return 1
}
# stands: rping has come to a halt (what was on its way may still arrive)
stands() {
  local before i
  for ((i = 0; i < 100; i++)); do
    before=$(count)
    sleep 0.5
    [[ $(count) == "$before" ]] && return
  done
  return 1
}
# A connection to the server that pings until it breaks.
log=$(mktemp)
ping() {
  rping -c -v -a "$PEER_IP" -p "$1" -C 100000000 >"$log" 2>&1 &
  rping=$!
  moves || fail "rping does not run"
}

rping -c -a "$PEER_IP" -p 7175 -C 10 >/dev/null || fail "rping"
if [[ -n $PEER_IP6 ]]; then
  rping -c -a "$PEER_IP6" -p 7176 -C 10 >/dev/null || fail "rping over IPv6"
fi
tcp || fail "TCP"
if [[ -z ${IN_GUEST:-} ]]; then
  guestctl tell done
  exit
fi

ping 7174
guestctl cut rdma
stands || fail "cut rdma: rping runs on"
tcp || fail "cut rdma: TCP is cut too"
guestctl mend
tcp || fail "mend"
kill "$rping" 2>/dev/null || true

ping 7175
guestctl cut all
stands || fail "cut all: rping runs on"
if tcp; then fail "cut all: TCP gets through"; fi
guestctl mend
tcp || fail "mend"
kill "$rping" 2>/dev/null || true

ip link set net0 down
if tcp; then fail "link down: TCP gets through"; fi
ip link set net0 up
tcp || fail "link up: no TCP"

ping 7175
guestctl device del
# It ends, whatever its status: the time limit is the test's.
wait "$rping" || true
[[ -z $(rdma link) ]] || fail "device del: it is still there"
tcp || fail "device del: no TCP"
guestctl device add
rping -c -a "$PEER_IP" -p 7175 -C 10 >/dev/null || fail "rping after device add"
if dmesg | grep -E 'BUG:|WARNING:|Oops'; then fail "the kernel complains"; fi
guestctl tell done
