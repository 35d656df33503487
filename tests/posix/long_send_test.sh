#!/bin/bash
# usage: long_send_test.sh PRELOAD
#
# One blocking send of many bytes moves to its lane in the middle, and prints what
# it prints over plain TCP.
set -uo pipefail
preload=$(realpath "$1")
program=$(realpath "$(dirname "$0")/long_send.py")
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/long_send.XXXXXX")
cd "$tmp" || exit 1
failed=0
fail() {
  echo "FAILED: $*"
  failed=1
}
# Python's own buffers must not hold what it prints.
timeout 120 /usr/bin/python3 -u "$program" 127.0.0.1 >plain.txt 2>&1 || fail "plain: $?: $(<plain.txt)"
(($(wc -l <plain.txt) >= 14)) || fail "plain: $(<plain.txt)"
LD_PRELOAD=$preload RCSOCK_LANES=shm RCSOCK_STATS=$tmp/stats.%p \
  timeout 120 /usr/bin/python3 -u "$program" 127.0.0.1 >lane.txt 2>&1 || fail "under rcsock: $?"
diff plain.txt lane.txt || fail "something else than plain"
# Both ends are in this process.  Five whole sends move to the lane, at their
# beginning; a vector of many pieces stays where it is.
python3 - stats.* <<'END' || fail "not on the lane in the middle of a send"
import json, sys
stats = max((json.load(open(path)) for path in sys.argv[1:]), key=lambda one: one["streams"])
shm, tcp = (stats["lanes"][lane]["tx_bytes"] for lane in ("shm", "tcp"))
print("sent over shm", shm, "tcp", tcp, "reasons", stats["reasons"])
sys.exit(not (stats["promoted"] >= 10 and shm > 4.2 * (48 << 20)))
END
exit $failed
