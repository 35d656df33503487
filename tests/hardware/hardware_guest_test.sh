#!/bin/bash
# usage, in a guest: hardware_guest_test RUN PROGRAM...
#
# tests/hardware/run, in its quick form, from end to end: both ends in this guest,
# or with a PEER_IP the driving end of a pair.  Speed is not looked at.
set -euo pipefail
run=$(realpath "$1")
shift
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/programs"
for program in "$@"; do
  ln -s "$(realpath "$program")" "$tmp/programs/"
done
words=("$RDMA_DEV" --quick --report "$tmp/report" --programs "$tmp/programs"
  --connections 60)
if [[ -n ${PEER_IP:-} ]]; then
  # The one who would be asked to start the other end is the other guest.
  words+=(--only hosts doctor "figures, sleeping" "teardown under traffic"
    "adaptive routing forced" --adaptive-routing "true")
else
  words+=(--one-host)
  # What rdma_cm sends while a link is down breaks rxe's GSI QP for good.
  if [[ $RDMA_DEV == siw* ]]; then words+=(--flap); fi
fi
status=0
if [[ -n ${PEER_IP:-} ]]; then
  mkfifo "$tmp/said"
  "$run" "${words[@]}" >"$tmp/said" &
  while read -r line; do
    echo "$line"
    if [[ $line == *" --serve "* ]]; then guestctl tell words "${line#*run }"; fi
  done <"$tmp/said"
  wait $! || status=$?
else
  "$run" "${words[@]}" || status=$?
fi
python3 - "$tmp/report" "$status" <<'END'
import json
import os
import sys

text, found = open(sys.argv[1]).read().split(
    "----- the same as JSON, for programs -----\n")
assert "== teardown under traffic: done" in text, text
report = json.loads(found)
states = {s["step"]: s["state"] for s in report["steps"]}
print(states)
for step in report["steps"]:
    assert step["state"] != "failed", step
    # What was skipped says why.
    assert step["state"] == "done" or step["why"], step
assert sys.argv[2] == "0", sys.argv[2]
churn = next(s for s in report["steps"] if s["step"] == "teardown under traffic")
client = churn["data"]["client"]
assert client["connections"] == 60 and client["on_lane"] > 20, client
assert churn["data"]["statistics"]["there"]["promoted"] > 20, churn
figures = next(s for s in report["steps"] if s["step"] == "figures, sleeping")
for row in figures["data"]["rows"]:
    assert row["tcp"] and row["verbs"] and row["perftest"], row
for name in "RDMA_IP", "PEER_IP", "RDMA_IP6":
    address = os.environ.get(name)
    assert not address or address not in text + found, name
END
if [[ -n ${PEER_IP:-} ]]; then exit; fi

# By ssh, as which a shell does: the other end has only what is carried there.
mkdir "$tmp/bin"
# shellcheck disable=SC2016  # the stand-in's
printf '#!/bin/bash\n[[ $1 == there ]] && exec bash -c "$2"\n' >"$tmp/bin/ssh"
chmod +x "$tmp/bin/ssh"
PATH=$tmp/bin:$PATH "$run" "$RDMA_DEV" there --quick --report "$tmp/report" \
  --programs "$tmp/programs" --connections 20 --only hosts "teardown under traffic"
[[ $(grep -c "^== .*: done" "$tmp/report") == 2 ]]
[[ -z $(compgen -G "${TMPDIR:-/tmp}/tmp.*/rcsock") ]]  # and it is gone again

# What is not there is skipped, and says so; nothing is pretended.
rm "$tmp/programs/teardown" "$tmp/programs/rdma_test"
"$run" "$RDMA_DEV" --one-host --quick --report "$tmp/report" \
  --programs "$tmp/programs" --only "teardown under traffic" \
  "meeting over rdma_cm" "port down and up" "adaptive routing forced"
[[ $(grep -c "^== .*: skipped" "$tmp/report") == 9 ]]
grep -A1 "^== teardown under traffic: skipped" "$tmp/report" | grep -q "teardown is not there"
status=0
"$run" none7 --one-host --report "$tmp/report" 2>"$tmp/err" || status=$?
[[ $status == 1 ]] && grep -q "none7: no such RDMA device here; there are: $RDMA_DEV" "$tmp/err"
