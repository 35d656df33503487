# The client of doctor_test.sh.
# shellcheck shell=bash
set -u
failed=0
# has NAME PATTERN
has() {
  grep -qE "$2" <<<"$out" && return
  printf 'FAILED: %s: no %s in\n%s\n' "$1" "$2" "$out"
  failed=1
}
out=$("$RCSOCK_TOOL" doctor "$PEER_IP" 2>&1)
status=$?
echo "$out"
has "its port" "^ok +$RDMA_DEV port 1 +ACTIVE"
has "its address" "^ok +$RDMA_DEV +reached by $RDMA_IP of $RDMA_NETDEV"
case $RDMA_DEV in
  siw*) has "verbs" "^ok +$RDMA_DEV +two QPs over $RDMA_IP: SEND/RECV, WRITE, READ verified" ;;
  *) has "verbs" "^ok +$RDMA_DEV +two QPs over $RDMA_IP: SEND/RECV, WRITE, READ, WRITE_WITH_IMM verified" ;;
esac
# The lab over memory of a GPU, which is plain memory here: the device registers
# it by its address.
out=$(LD_LIBRARY_PATH=$FAKE_CUDA_DIR FAKE_CUDA_PLAIN=1 \
  "$RCSOCK_TOOL" doctor-probe gpu-verbs "$RDMA_IP" 0)
has "the lab" '"failed":"","good":"SEND/RECV, WRITE, READ(, WRITE_WITH_IMM)?"'
out=$(LD_LIBRARY_PATH=$FAKE_CUDA_DIR "$RCSOCK_TOOL" doctor-probe gpu-verbs "$RDMA_IP" 0)
has "the lab, not registered" '"refused":true'
out=$("$RCSOCK_TOOL" doctor "$PEER_IP" 2>&1)
has "the shm loop" "^ok +shm lane +lane shm open"
has "the route" "^ok +route +$PEER_IP is reached through $RDMA_DEV"
has "the lane" "^ok +to $PEER_IP +lane rdma on $RDMA_DEV open .* 500 round trips verified"
has "TCP beside it" "^(ok|warn) +to $PEER_IP +over TCP a round trip takes [0-9.]+ us"
[[ $status == 0 ]] || { echo "FAILED: status $status"; failed=1; }
[[ -z ${IN_GUEST:-} ]] || has "no hardware" "^note +$RDMA_DEV +a device without hardware, slower than TCP"
case $RDMA_DEV in
  siw*) has "its counters" "^note +$RDMA_DEV port 1 +its driver counts no lost packets" ;;
  *) has "its counters" "^(ok|warn|note) +$RDMA_DEV port 1 +.*(0 RNR|since its driver was loaded)" ;;
esac
out=$(RCSOCK_DEVICES="-$RDMA_DEV:1" "$RCSOCK_TOOL" doctor "$PEER_IP" 2>&1)
status=$?
has "left alone" "^note +$RDMA_DEV +the configuration leaves it alone: streams over $RDMA_IP stay on TCP"
has "left alone: why" "^BAD +to $PEER_IP +no lane: its RDMA device is left alone \(device_left_alone\); TCP works"
has "left alone: what helps" "mend: .devices. of the configuration"
grep -q "two QPs" <<<"$out" && { echo "FAILED: left alone, and tried"; failed=1; }
[[ $status == 1 ]] || { echo "FAILED: left alone: status $status"; failed=1; }
out=$(ulimit -l 16 && "$RCSOCK_TOOL" doctor 2>&1)
has "memlock" "^BAD +memlock +16 KiB"
if [[ -n ${IN_GUEST:-} ]]; then
  guestctl cut rdma
  out=$("$RCSOCK_TOOL" doctor "$PEER_IP" 2>&1)
  status=$?
  echo "$out" | tail -4
  has "RDMA is cut: why" "^BAD +to $PEER_IP +no lane: .*TCP works"
  [[ $status == 1 ]] || { echo "FAILED: RDMA is cut: status $status"; failed=1; }
  guestctl mend
  guestctl device del
  out=$("$RCSOCK_TOOL" doctor "$PEER_IP" 2>&1)
  has "no device: why" "^BAD +to $PEER_IP +no lane: .*\(no_device\)"
  has "no device: what helps" "mend: .*rdma link add"
fi
exit "$failed"
