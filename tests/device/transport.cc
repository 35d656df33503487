// A Reliable Connection: what a QP sends, and what it does with what comes.

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/device/engine.h"
#include "tests/device/raw.h"

namespace fake_device {
namespace {

using std::chrono::microseconds;

constexpr std::size_t kMostEarly = 4096;
constexpr std::uint32_t kRnrMicroseconds[32] = {
    655360, 10,    20,    30,     40,     60,     80,     120,
    160,    240,   320,   480,    640,    960,    1280,   1920,
    2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
    40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};
// A sender gives up a receiver that does not answer after this, whatever longer
// time it has been told.
constexpr microseconds kMostAckWait{2'000'000};
constexpr int kMostLateMicroseconds = 1500;

Head NewHead(Kind kind, std::uint32_t number) {
  Head head{};
  head.kind = kind;
  head.number = number;
  return head;
}

// --- Memory

Mr* Covering(const Qp* qp, std::uint64_t address, std::size_t length,
             std::uint32_t key, unsigned access) {
  const auto found = qp->state->mrs.find(key);
  if (found == qp->state->mrs.end()) return nullptr;
  Mr* const mr = found->second;
  const auto base = reinterpret_cast<std::uintptr_t>(mr->base.addr);
  const bool inside = address >= base && address - base <= mr->base.length &&
                      mr->base.length - (address - base) >= length;
  return inside && mr->base.pd == qp->base.pd && (mr->access & access) == access
             ? mr
             : nullptr;
}

// Where the device finds an address of that region. Another region may have the
// same addresses: its memory has gone, and the program has mapped new memory.
void* At(const Mr* mr, std::uint64_t address) {
  if (mr == nullptr || mr->device == nullptr) {
    return reinterpret_cast<void*>(address);
  }
  return mr->device +
         (address - reinterpret_cast<std::uintptr_t>(mr->base.addr));
}

// A word that others may be reading or writing is taken, and put, as one.
void Copy(void* to, const void* from, std::size_t length) {
  if (length == 0) return;
  const auto aligned = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 8 == 0;
  };
  if (length != 8 || (!aligned(to) && !aligned(from))) {
    std::memcpy(to, from, length);
    return;
  }
  std::uint64_t word;
  if (aligned(from)) {
    word = __atomic_load_n(static_cast<const std::uint64_t*>(from),
                           __ATOMIC_ACQUIRE);
  } else {
    std::memcpy(&word, from, 8);
  }
  if (aligned(to)) {
    __atomic_store_n(static_cast<std::uint64_t*>(to), word, __ATOMIC_RELEASE);
  } else {
    std::memcpy(to, &word, 8);
  }
}

// --- Sending

void Fail(Qp* qp, Request* request, ibv_wc_status status);

// Those at the front that are done.
void Retire(Qp* qp) {
  while (!qp->requests.empty() && qp->requests.front().done) {
    const Request request = std::move(qp->requests.front());
    qp->requests.pop_front();
    --qp->next;
    ++qp->frees;
    if (!request.signalled) continue;
    Entry entry;
    entry.wc.wr_id = request.wr_id;
    entry.wc.status = IBV_WC_SUCCESS;
    entry.wc.opcode = request.opcode == IBV_WR_SEND        ? IBV_WC_SEND
                      : request.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                                                           : IBV_WC_RDMA_WRITE;
    entry.wc.byte_len = request.length;
    entry.wc.qp_num = qp->base.qp_num;
    entry.frees = std::exchange(qp->frees, 0);
    Complete(reinterpret_cast<Cq*>(qp->base.send_cq), entry);
  }
}

// A request that has been sent, by its number.
Request* Sent(Qp* qp, std::uint32_t number) {
  for (std::size_t i = 0; i < qp->next; ++i) {
    if (qp->requests[i].number == number) return &qp->requests[i];
  }
  return nullptr;
}

// All before `number` have arrived.
void Acknowledged(Qp* qp, std::uint32_t number) {
  for (std::size_t i = 0; i < qp->next; ++i) {
    Request& request = qp->requests[i];
    if (static_cast<std::int32_t>(request.number - number) >= 0) break;
    if (request.opcode != IBV_WR_RDMA_READ) request.done = true;
  }
  qp->rnr_tries = 0;
  Retire(qp);
}

// False: the memory is not what the keys are for.
bool Gather(const Qp* qp, const Request& request, std::uint32_t offset,
            std::uint32_t length, char* to) {
  if (request.inlined) {
    Copy(to, request.bytes.data() + offset, length);
    return true;
  }
  std::uint32_t begin = 0;
  for (const ibv_sge& sge : request.sges) {
    const std::uint32_t end = begin + sge.length;
    if (offset < end && length > 0) {
      const std::uint32_t skip = offset - begin;
      const std::uint32_t n = std::min(length, sge.length - skip);
      const Mr* const mr = Covering(qp, sge.addr + skip, n, sge.lkey, 0);
      if (mr == nullptr) return false;
      Copy(to, At(mr, sge.addr + skip), n);
      to += n;
      offset += n;
      length -= n;
    }
    begin = end;
  }
  return length == 0;
}

// 1: sent; 0: the socket is full; -1: there is no peer.
int Send(Conn* conn, const Head& head, const void* data) {
  iovec pieces[2] = {{const_cast<Head*>(&head), sizeof head},
                     {const_cast<void*>(data), head.length}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = head.length != 0 ? 2 : 1;
  long n;
  do {
    n = Raw(SYS_sendmsg, conn->fd, Arg(&message), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n == -EINTR);
  return n >= 0 ? 1 : n == -EAGAIN ? 0 : -1;
}

void WantRoom(Conn* conn, bool want) {
  if (conn->full == want) return;
  conn->full = want;
  epoll_event event{};
  event.events = EPOLLIN | (want ? EPOLLOUT : 0u);
  event.data.u64 = conn->serial;
  Raw(SYS_epoll_ctl, conn->state->epoll, EPOLL_CTL_MOD, conn->fd, Arg(&event));
}

Kind KindOf(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
      return Kind::kWrite;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return Kind::kWriteImm;
    case IBV_WR_RDMA_READ:
      return Kind::kReadRequest;
    default:
      return Kind::kSend;
  }
}

// One packet.  False: no more can be sent now.
bool SendNext(Conn* conn, Qp* qp) {
  Request& request = qp->requests[qp->next];
  const bool read = request.opcode == IBV_WR_RDMA_READ;
  if ((read || request.fence) && qp->reads > 0) return false;
  Head head = NewHead(KindOf(request.opcode), request.number);
  head.total = request.length;
  head.offset = qp->next_offset;
  head.address = request.address;
  head.key = request.key;
  head.imm = request.imm;
  head.solicited = request.solicited ? 1 : 0;
  static thread_local std::vector<char> data(kMtu);
  if (!read) {
    head.length = std::min<std::uint32_t>(request.length - qp->next_offset,
                                          static_cast<std::uint32_t>(kMtu));
    if (!Gather(qp, request, qp->next_offset, head.length, data.data())) {
      Fail(qp, &request, IBV_WC_LOC_PROT_ERR);
      return false;
    }
  }
  const int sent = Send(conn, head, data.data());
  if (sent <= 0) {
    if (sent == 0) WantRoom(conn, true);
    if (sent < 0) OnConnEnd(conn);
    return false;
  }
  qp->next_offset += head.length;
  if (!read && qp->next_offset < request.length) return true;
  qp->next_offset = 0;
  ++qp->next;
  if (read) {
    ++qp->reads;
  } else if (qp->state->options.iwarp) {
    // There the completion says that the memory may be used again.
    request.done = true;
    Retire(qp);
  }
  return true;
}

// --- Ends

void Flush(Qp* qp, Cq* cq, std::uint64_t wr_id, std::uint32_t frees,
           bool shared) {
  Entry entry;
  // What else there is of a failed one means nothing.
  std::memset(&entry.wc, 0x5a, sizeof entry.wc);
  entry.wc.wr_id = wr_id;
  entry.wc.status = IBV_WC_WR_FLUSH_ERR;
  entry.wc.vendor_err = 0;
  entry.wc.qp_num = qp->base.qp_num;
  entry.frees = frees;
  entry.shared = shared;
  Complete(cq, entry);
}

void Fail(Qp* qp, Request* request, ibv_wc_status status) {
  if (qp->base.state == IBV_QPS_ERR) return;
  // Those before it are done, as far as anybody will ever know.
  while (&qp->requests.front() != request) {
    qp->requests.pop_front();
    ++qp->frees;
  }
  Entry entry;
  std::memset(&entry.wc, 0x5a, sizeof entry.wc);
  entry.wc.wr_id = request->wr_id;
  entry.wc.status = status;
  entry.wc.qp_num = qp->base.qp_num;
  entry.frees = std::exchange(qp->frees, 0) + 1;
  qp->requests.pop_front();
  qp->next = 0;
  Complete(reinterpret_cast<Cq*>(qp->base.send_cq), entry);
  FailQp(qp);
}

microseconds AckWait(const Qp* qp) {
  if (qp->ack_timeout == 0) return microseconds(500'000);
  const auto once =
      microseconds((std::uint64_t{4096} << (qp->ack_timeout & 31)) / 1000);
  return std::min(once * (qp->retry_count + 1), kMostAckWait);
}

// --- Receiving

bool TakeReceive(Qp* qp, Receive* receive) {
  auto* const srq = reinterpret_cast<Srq*>(qp->base.srq);
  ReceiveQueue& queue = srq != nullptr ? srq->queue : qp->own;
  if (queue.posted.empty()) return false;
  *receive = std::move(queue.posted.front());
  queue.posted.pop_front();
  if (srq != nullptr && srq->limit != 0 && queue.posted.size() < srq->limit) {
    srq->limit = 0;
    AsyncEvent(qp->state, IBV_EVENT_SRQ_LIMIT_REACHED, srq, 0);
  }
  return true;
}

void Reply(Conn* conn, Kind kind, std::uint32_t number, std::uint16_t status) {
  Head head = NewHead(kind, number);
  head.status = status;
  SendFrame(conn, head, {});
}

// What has been received is refused.
void Refuse(Conn* conn, Qp* qp, std::uint32_t number, ibv_wc_status status,
            ibv_event_type event) {
  Land(qp, true);
  Reply(conn, Kind::kNak, number, static_cast<std::uint16_t>(status));
  AsyncEvent(qp->state, event, qp, 0);
  FailQp(qp);
}

void ReceiveDone(Qp* qp, const Receive& receive, ibv_wc_status status,
                 const Head& head) {
  Entry entry;
  entry.wc.wr_id = receive.wr_id;
  entry.wc.status = status;
  entry.wc.qp_num = qp->base.qp_num;
  entry.wc.byte_len = head.total;
  entry.wc.opcode =
      head.kind == Kind::kSend ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  if (head.kind == Kind::kWriteImm) {
    entry.wc.wc_flags = IBV_WC_WITH_IMM;
    entry.wc.imm_data = head.imm;
  }
  entry.shared = qp->base.srq != nullptr;
  entry.solicited = head.solicited != 0;
  Complete(reinterpret_cast<Cq*>(qp->base.recv_cq), entry);
}

// False: none was there, and the sender will try again.
bool HaveReceive(Conn* conn, Qp* qp, const Head& head) {
  if (qp->has_current) return true;
  qp->has_current = TakeReceive(qp, &qp->current);
  if (qp->has_current) return true;
  Count(&Counts::rnr);
  if (qp->state->options.iwarp) {
    // There is nothing of the kind: the connection ends.
    Refuse(conn, qp, head.number, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_REQ_ERR);
    return false;
  }
  qp->offset = 0;
  Reply(conn, Kind::kRnr, head.number, qp->min_rnr_timer);
  return false;
}

// `mr` is null for a WRITE of nothing.
void Write(Qp* qp, const Mr* mr, std::uint64_t address, const char* data,
           std::uint32_t length) {
  State* const state = qp->state;
  if (!state->options.unordered) {
    Copy(At(mr, address), data, length);
    return;
  }
  // In pieces of lines, each on its own; a line or less by its words.
  const std::uint32_t word = length <= 64 ? 8 : length;
  while (length > 0) {
    std::uint32_t n = std::min(length, word);
    if (n > 128 && state->Chance(2)) n = 64 * (1 + state->Below(n / 64 - 1));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
    qp->late.push_back({mr->base.rkey, address, {bytes, bytes + n}});
    address += n;
    data += n;
    length -= n;
  }
  while (qp->late.size() > 64 || (!qp->late.empty() && state->Chance(4))) {
    Land(qp, false);
  }
}

void OnWrite(Conn* conn, Qp* qp, const Head& head, const char* data) {
  const Mr* const mr = head.total == 0
                           ? nullptr
                           : Covering(qp, head.address, head.total, head.key,
                                      IBV_ACCESS_REMOTE_WRITE);
  if (head.total != 0 && mr == nullptr) {
    return Refuse(conn, qp, head.number, IBV_WC_REM_ACCESS_ERR,
                  IBV_EVENT_QP_ACCESS_ERR);
  }
  const bool last = head.offset + head.length == head.total;
  if (last && head.kind == Kind::kWriteImm && !HaveReceive(conn, qp, head)) {
    return;
  }
  Write(qp, mr, head.address + head.offset, data, head.length);
  qp->offset += head.length;
  if (!last) return;
  qp->offset = 0;
  ++qp->expected;
  qp->owes_ack = true;
  Count(&Counts::writes);
  if (head.kind == Kind::kWrite) return;
  Land(qp, true);
  qp->has_current = false;
  Count(&Counts::messages);
  ReceiveDone(qp, qp->current, IBV_WC_SUCCESS, head);
}

void OnSend(Conn* conn, Qp* qp, const Head& head, const char* data) {
  if (!HaveReceive(conn, qp, head)) return;
  std::uint32_t begin = 0;
  std::uint32_t offset = head.offset;
  std::uint32_t left = head.length;
  for (const ibv_sge& sge : qp->current.sges) {
    const std::uint32_t end = begin + sge.length;
    if (offset < end && left > 0) {
      const std::uint32_t n = std::min(left, end - offset);
      const std::uint64_t to = sge.addr + (offset - begin);
      const Mr* const mr =
          Covering(qp, to, n, sge.lkey, IBV_ACCESS_LOCAL_WRITE);
      if (mr == nullptr) break;
      Copy(At(mr, to), data, n);
      data += n;
      offset += n;
      left -= n;
    }
    begin = end;
  }
  if (left != 0) {
    Land(qp, true);
    qp->has_current = false;
    ReceiveDone(qp, qp->current,
                offset < begin ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR,
                head);
    Reply(conn, Kind::kNak, head.number, IBV_WC_REM_INV_REQ_ERR);
    return FailQp(qp);
  }
  qp->offset += head.length;
  if (head.offset + head.length != head.total) return;
  qp->offset = 0;
  ++qp->expected;
  qp->owes_ack = true;
  qp->has_current = false;
  Land(qp, true);
  Count(&Counts::messages);
  ReceiveDone(qp, qp->current, IBV_WC_SUCCESS, head);
}

void OnReadRequest(Conn* conn, Qp* qp, const Head& head) {
  Land(qp, true);
  const Mr* const mr =
      Covering(qp, head.address, head.total, head.key, IBV_ACCESS_REMOTE_READ);
  if (mr == nullptr) {
    return Refuse(conn, qp, head.number, IBV_WC_REM_ACCESS_ERR,
                  IBV_EVENT_QP_ACCESS_ERR);
  }
  Count(&Counts::reads);
  ++qp->expected;
  std::uint32_t offset = 0;
  do {
    Head answer = NewHead(Kind::kReadResponse, head.number);
    answer.total = head.total;
    answer.offset = offset;
    answer.length =
        std::min<std::uint32_t>(head.total - offset, std::uint32_t{kMtu});
    std::string data(answer.length, '\0');
    Copy(data.data(), At(mr, head.address + offset), answer.length);
    SendFrame(conn, answer, data);
    offset += answer.length;
  } while (offset < head.total);
}

void OnReadResponse(Qp* qp, const Head& head, const char* data) {
  Acknowledged(qp, head.number);
  Request* const request = Sent(qp, head.number);
  if (request == nullptr || request->sges.empty()) return;
  const ibv_sge& sink = request->sges[0];
  // On iWARP the answer is a message that names the sink, as a WRITE's does.
  const unsigned access = qp->state->options.iwarp ? IBV_ACCESS_REMOTE_WRITE
                                                   : IBV_ACCESS_LOCAL_WRITE;
  const Mr* const mr = Covering(qp, sink.addr, head.total, sink.lkey, access);
  if (mr == nullptr) return Fail(qp, request, IBV_WC_LOC_PROT_ERR);
  Copy(At(mr, sink.addr + head.offset), data, head.length);
  if (head.offset + head.length != head.total) return;
  request->done = true;
  --qp->reads;
  Retire(qp);
  if (qp->conn != nullptr) qp->state->Ready(qp->conn);
}

// To the receiver: not now.
void OnRnr(Qp* qp, const Head& head) {
  Acknowledged(qp, head.number);
  Request* const request = Sent(qp, head.number);
  if (request == nullptr) return;
  if (qp->rnr_retry != 7 && ++qp->rnr_tries > qp->rnr_retry) {
    return Fail(qp, request, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  do {
    --qp->next;
    if (qp->requests[qp->next].opcode == IBV_WR_RDMA_READ) --qp->reads;
  } while (&qp->requests[qp->next] != request);
  qp->next_offset = 0;
  qp->waits = true;
  State* const state = qp->state;
  state->Later(microseconds(kRnrMicroseconds[head.status & 31]),
               [state, number = qp->base.qp_num] {
                 const auto found = state->qps.find(number);
                 if (found == state->qps.end()) return;
                 found->second->waits = false;
                 if (found->second->conn != nullptr) {
                   Pump(found->second->conn);
                 }
               });
}

void OnData(Conn* conn, const Head& head, const std::string& frame) {
  Qp* const qp = conn->qp;
  const bool ready = qp != nullptr && (qp->base.state == IBV_QPS_RTR ||
                                       qp->base.state == IBV_QPS_RTS);
  if (!ready) {
    const bool coming =
        !conn->qp_gone && (qp == nullptr || qp->base.state == IBV_QPS_INIT ||
                           qp->base.state == IBV_QPS_RESET);
    if (coming && conn->early.size() < kMostEarly) {
      conn->early.push_back(frame);
    } else {
      Reply(conn, Kind::kNoQp, head.number, 0);
    }
    return;
  }
  if (qp->silent) return;
  const char* const data = frame.data() + sizeof head;
  // What follows a message that found no receive comes again.
  if (head.number != qp->expected || head.offset != qp->offset) return;
  Count(&Counts::bytes, head.length);
  switch (head.kind) {
    case Kind::kWrite:
    case Kind::kWriteImm:
      return OnWrite(conn, qp, head, data);
    case Kind::kSend:
      return OnSend(conn, qp, head, data);
    default:
      return OnReadRequest(conn, qp, head);
  }
}

}  // namespace

void SendFrame(Conn* conn, const Head& head, const std::string& data) {
  if (conn->out.empty()) {
    const int sent = Send(conn, head, data.data());
    if (sent != 0) return;
  }
  std::string frame(reinterpret_cast<const char*>(&head), sizeof head);
  conn->out.push_back(frame + data);
  WantRoom(conn, true);
}

void Pump(Conn* conn) {
  while (!conn->out.empty()) {
    const std::string& frame = conn->out.front();
    Head head;
    std::memcpy(&head, frame.data(), sizeof head);
    const int sent = Send(conn, head, frame.data() + sizeof head);
    if (sent == 0) return WantRoom(conn, true);
    conn->out.pop_front();
  }
  WantRoom(conn, false);
  Qp* const qp = conn->qp;
  if (qp == nullptr || qp->silent || qp->waits) return;
  while (qp->base.state == IBV_QPS_RTS && qp->next < qp->requests.size() &&
         !conn->no_qp) {
    if (!SendNext(conn, qp)) return;
  }
  if (conn->no_qp) OnConnEnd(conn);
}

void OnFrame(Conn* conn, const std::string& frame) {
  Head head;
  if (frame.size() < sizeof head) return;
  std::memcpy(&head, frame.data(), sizeof head);
  if (frame.size() != sizeof head + head.length) return;
  switch (head.kind) {
    case Kind::kWrite:
    case Kind::kWriteImm:
    case Kind::kSend:
    case Kind::kReadRequest:
      return OnData(conn, head, frame);
    case Kind::kReadResponse:
    case Kind::kAck:
    case Kind::kNak:
    case Kind::kRnr:
      break;
    case Kind::kNoQp:
      return OnConnEnd(conn);
    default:
      return OnCmFrame(conn, head, frame.substr(sizeof head));
  }
  Qp* const qp = conn->qp;
  if (qp == nullptr || qp->silent || qp->base.state == IBV_QPS_ERR) return;
  switch (head.kind) {
    case Kind::kReadResponse:
      return OnReadResponse(qp, head, frame.data() + sizeof head);
    case Kind::kAck:
      return Acknowledged(qp, head.number);
    case Kind::kNak:
      Acknowledged(qp, head.number);
      if (Request* request = Sent(qp, head.number)) {
        return Fail(qp, request, static_cast<ibv_wc_status>(head.status));
      }
      // On iWARP it has been completed long ago.
      AsyncEvent(qp->state, IBV_EVENT_QP_FATAL, qp, 0);
      return FailQp(qp);
    default:
      return OnRnr(qp, head);
  }
}

namespace {

void Acknowledge(Conn* conn) {
  Qp* const qp = conn->qp;
  Land(qp, true);
  if (!std::exchange(qp->owes_ack, false) || qp->state->options.iwarp) return;
  Reply(conn, Kind::kAck, qp->expected, 0);
}

}  // namespace

// What has been acknowledged is in its place; either may come late.
void OnBatchEnd(Conn* conn) {
  Qp* const qp = conn->qp;
  if (qp == nullptr || (!qp->owes_ack && qp->late.empty())) return;
  State* const state = conn->state;
  if (!state->options.unordered || state->Chance(2)) return Acknowledge(conn);
  if (std::exchange(qp->lands_soon, true)) return;
  state->Later(microseconds(state->Below(kMostLateMicroseconds)),
               [state, serial = conn->serial] {
                 const auto found = state->conns.find(serial);
                 if (found == state->conns.end()) return;
                 if (found->second->qp == nullptr) return;
                 found->second->qp->lands_soon = false;
                 Acknowledge(found->second);
               });
}

void OnReady(Qp* qp) {
  Conn* const conn = qp->conn;
  if (conn == nullptr) return;
  State* const state = qp->state;
  state->tasks.push_back([state, serial = conn->serial] {
    const auto found = state->conns.find(serial);
    if (found == state->conns.end()) return;
    std::deque<std::string> early;
    early.swap(found->second->early);
    for (const std::string& frame : early) OnFrame(found->second, frame);
    OnBatchEnd(found->second);
    Pump(found->second);
  });
  state->some.notify_all();
}

// Nobody acknowledges what is sent from now on.
void OnConnEnd(Conn* conn) {
  conn->no_qp = true;
  Qp* const qp = conn->qp;
  if (qp == nullptr || qp->requests.empty() || qp->silent ||
      std::exchange(qp->failing, true)) {
    return;
  }
  State* const state = qp->state;
  state->Later(AckWait(qp), [state, number = qp->base.qp_num] {
    const auto found = state->qps.find(number);
    if (found == state->qps.end()) return;
    Qp* const one = found->second;
    one->failing = false;
    if (one->requests.empty() || one->silent ||
        one->base.state != IBV_QPS_RTS) {
      return;
    }
    Fail(one, &one->requests.front(), IBV_WC_RETRY_EXC_ERR);
  });
}

void Land(Qp* qp, bool all) {
  while (!qp->late.empty()) {
    const std::size_t which =
        qp->state->Below(static_cast<std::uint32_t>(qp->late.size()));
    if (which != 0) Count(&Counts::overtaken);
    const Late one = std::move(qp->late[which]);
    qp->late.erase(qp->late.begin() + static_cast<std::ptrdiff_t>(which));
    // (Its key may have gone meanwhile: with that it came to nothing.)
    const auto mr = qp->state->mrs.find(one.key);
    if (mr != qp->state->mrs.end()) {
      Copy(At(mr->second, one.address), one.bytes.data(), one.bytes.size());
    }
    if (!all) return;
  }
}

void FinishFlush(Qp* qp) {
  auto* const send_cq = reinterpret_cast<Cq*>(qp->base.send_cq);
  auto* const recv_cq = reinterpret_cast<Cq*>(qp->base.recv_cq);
  for (const Request& request : qp->requests) {
    Flush(qp, send_cq, request.wr_id, std::exchange(qp->frees, 0) + 1, false);
  }
  qp->requests.clear();
  qp->next = 0;
  qp->next_offset = 0;
  if (qp->base.srq == nullptr && qp->has_current) {
    Flush(qp, recv_cq, qp->current.wr_id, 0, false);
    qp->has_current = false;
  }
  for (const Receive& receive : qp->own.posted) {
    Flush(qp, recv_cq, receive.wr_id, 0, false);
  }
  qp->own.posted.clear();
  if (qp->has_fetched) {
    qp->has_fetched = false;
    Flush(qp, recv_cq, qp->fetched.wr_id, 0, true);
  }
}

void FailQp(Qp* qp) {
  if (qp->base.state == IBV_QPS_ERR || qp->base.state == IBV_QPS_RESET) return;
  State* const state = qp->state;
  qp->base.state = IBV_QPS_ERR;
  // What was late may have come to nothing as well.
  Land(qp, true);
  auto* const srq = reinterpret_cast<Srq*>(qp->base.srq);
  if (srq != nullptr) {
    if (qp->has_current) {
      qp->fetched = std::move(qp->current);
      qp->has_fetched = true;
      qp->has_current = false;
    } else if (state->options.late_flush && state->Chance(2)) {
      // A message was about to come in.
      qp->has_fetched = TakeReceive(qp, &qp->fetched);
    }
  }
  const auto finish = [state, number = qp->base.qp_num] {
    const auto found = state->qps.find(number);
    if (found == state->qps.end()) return;
    Qp* const one = found->second;
    if (one->silent || one->base.state != IBV_QPS_ERR) return;
    FinishFlush(one);
    if (one->base.srq == nullptr) return;
    Count(&Counts::last_wqe);
    AsyncEvent(state, IBV_EVENT_QP_LAST_WQE_REACHED, one, 0);
  };
  if (!state->options.late_flush) return finish();
  Count(&Counts::late_flushes);
  state->Later(microseconds(100 + state->Below(2000)), finish);
}

void Complete(Cq* cq, const Entry& entry) {
  State* const state = cq->state;
  if (cq->entries.size() >= static_cast<std::size_t>(cq->base.cqe)) {
    Count(&Counts::overruns);
    AsyncEvent(state, IBV_EVENT_CQ_ERR, cq, 0);
    return;
  }
  cq->entries.push_back(entry);
  const bool wakes =
      !cq->solicited || entry.solicited || entry.wc.status != IBV_WC_SUCCESS;
  if (!cq->armed || !wakes) return;
  cq->armed = false;
  ++cq->unfetched;
  const auto tell = [state, cq] {
    if (state->cqs.count(cq) == 0) return;
    auto* const channel = reinterpret_cast<CompChannel*>(cq->base.channel);
    const ibv_cq* const record = &cq->base;
    Count(&Counts::events);
    Tell(state, channel->fifo, &record, sizeof record);
  };
  const std::uint32_t lost = state->options.lost_events;
  if (std::exchange(state->loses_event, false) ||
      (lost != 0 && ++state->events_due % lost == 0)) {
    Count(&Counts::lost_events);
    return;
  }
  if (state->options.late_events && state->Chance(2)) {
    Count(&Counts::delayed_events);
    state->Later(microseconds(state->Below(kMostLateMicroseconds)), tell);
    return;
  }
  tell();
}

}  // namespace fake_device
