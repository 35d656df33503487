// The writing half of a mapping: straight into the peer's memory if possible,
// or as a record.

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "lib/api/rsocket/channel.h"
#include "lib/api/rsocket/record.h"
#include "lib/base/backoff.h"
#include "lib/base/env.h"
#include "lib/include/rcsock/rcsock.h"

namespace rcsock::rsocket {
namespace {

// A device that has not acknowledged for this long will not, or its link is no
// faster than TCP: the stream leaves its lane. PROBE takes as long to find
// that.
constexpr std::int64_t kPatienceNs = 1'000'000'000;
constexpr std::int64_t kSpinNs = 200'000;
constexpr std::size_t kPage = 4096;

// RCSOCK_PEERS names other users, and RCSOCK_MEET_DIR a directory in which
// processes of other containers are met. Both are read when the library is
// loaded, as librcsock reads them: the program may clear its environment
// afterwards.
bool other_users = false;
[[gnu::constructor]] void ReadOtherUsers() {
  for (const char* name : {"RCSOCK_PEERS", "RCSOCK_MEET_DIR"}) {
    const char* value = base::Env(name);
    if (value != nullptr && *value != '\0') other_users = true;
  }
}

std::int64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace

// --- Shared memory: the peer's process

// The peer's process is reachable only on a shared-memory lane, and only where
// no lane is made with other users' processes. Then both are of one user on one
// host, and what the peer says of its memory gives it nothing new. Another
// user's process could name memory of one of ours. The cookie shows that the
// pid is the peer's process.
bool Channel::PeerReachable(int lane) {
  if (direct_ == Direct::kNo || peer_pid_ <= 0 || lane != RCS_SHM) {
    return false;
  }
  if (direct_ == Direct::kUnknown) {
    if (other_users) {
      direct_ = Direct::kNo;
      return false;
    }
    unsigned char cookie[sizeof peer_cookie_];
    direct_ = ReadPeer(peer_pid_, peer_cookie_at_, cookie, sizeof cookie) &&
                      std::memcmp(cookie, peer_cookie_, sizeof cookie) == 0
                  ? Direct::kYes
                  : Direct::kNo;
  }
  return direct_ == Direct::kYes;
}

ssize_t Channel::WriteDirect(const Remote& to, const void* from,
                             std::size_t length, std::uint64_t offset) {
  std::uint32_t valid = 0;
  busy_.store(1, std::memory_order_seq_cst);
  ssize_t n = 0;
  if (!ReadPeer(peer_pid_, to.valid, &valid, sizeof valid)) {
    direct_ = Direct::kNo;
  } else if (valid == 1) {
    const iovec here{const_cast<void*>(from), length};
    const iovec there{
        reinterpret_cast<void*>(to.address + (offset - to.offset)), length};
    n = ::process_vm_writev(peer_pid_, &here, 1, &there, 1, 0);
    if (n <= 0) direct_ = Direct::kNo;
  }
  busy_.store(0, std::memory_order_seq_cst);
  return n > 0 ? n : 0;
}

// A direct write must not overtake a write that went as a record.
bool Channel::CaughtUp() {
  if (writes_taken_ == writes_sent_) return true;
  if (asks_left_ == 0) return false;
  --asks_left_;
  Record record{};
  record.type = kAsk;
  record.offset = writes_asked_ = writes_sent_.load();
  Queue(record);
  // The peer answers from a thread of its own.
  for (int i = 0; i < 10 && data_left_ == 0 && !end_; ++i) {
    pollfd one{fd_, POLLIN, 0};
    rcs_poll(&one, 1, 1);
    ProgressLatched();
    if (writes_taken_ == writes_sent_) return true;
  }
  return false;
}

// --- RDMA: the peer's device

void Channel::Hide(Local& local) {
  if (local.exposed.lane_id != 0) rcs_hide(fd_, &local.exposed);
  local.exposed = {};
}

bool Channel::GiveCounter(std::uint32_t lane_id) {
  if (lane_id != 0 && counter_exposed_.lane_id == lane_id) return true;
  if (counter_ == nullptr) {
    void* memory = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    counter_ = static_cast<std::uint64_t*>(memory);
  }
  if (counter_exposed_.lane_id != 0) rcs_hide(fd_, &counter_exposed_);
  if (rcs_expose(fd_, counter_, sizeof *counter_, &counter_exposed_) != 0) {
    counter_exposed_ = {};
    return false;
  }
  Record record{};
  record.type = kCounter;
  record.extent = sizeof *counter_;
  record.address = counter_exposed_.address;
  record.valid =
      std::uint64_t{counter_exposed_.key} << 32 | counter_exposed_.lane_id;
  Queue(record);
  return true;
}

void Channel::DropCounter() {
  if (counter_ == nullptr) return;
  if (counter_exposed_.lane_id != 0) rcs_hide(fd_, &counter_exposed_);
  counter_exposed_ = {};
  ::munmap(counter_, kPage);
  counter_ = nullptr;
}

std::size_t Channel::GiveKey(std::uint64_t offset) {
  for (Local& local : locals_) {
    if (local.offset != offset) continue;
    rcs_stream_info info{};
    if (rcs_get_stream_info(fd_, &info, sizeof info) < 0) break;
    // Without a counter the peer goes on sending records.
    if (!GiveCounter(info.lane_id)) break;
    if (local.exposed.lane_id == 0 || local.exposed.lane_id != info.lane_id) {
      Hide(local);
      if (rcs_expose(fd_, local.buffer, local.length, &local.exposed) != 0) {
        local.exposed = {};
        break;  // so the peer goes on sending records
      }
    }
    Record record{};
    record.type = kKey;
    record.offset = local.offset;
    record.extent = local.length;
    record.address = local.exposed.address;
    record.valid =
        std::uint64_t{local.exposed.key} << 32 | local.exposed.lane_id;
    return Queue(record);
  }
  return Owed();
}

std::size_t Channel::Owed() {
  const base::MutexGuard hold(tx_);
  return owed_.size();
}

bool Channel::RefusesToPlace() {
  const base::MutexGuard hold(tx_);
  return placed_.refused();
}

bool Channel::Placeable(Remote& to, const rcs_stream_info& info) {
  if (info.lane != RCS_RDMA || info.lane_id == 0 || RefusesToPlace()) {
    return false;
  }
  if (to.exposed.lane_id == info.lane_id &&
      peer_counter_.lane_id == info.lane_id) {
    return true;
  }
  if (to.asked != info.lane_id) {
    to.asked = info.lane_id;
    asks_left_ = kAsks;
    Record record{};
    record.type = kWantKey;
    record.offset = to.offset;
    Queue(record);
  }
  return false;
}

// Returns bytes; 0: send a record instead.
ssize_t Channel::Place(const Remote& to, const void* from, std::size_t length,
                       std::uint64_t offset) {
  const base::MutexGuard hold(tx_);
  if (!placed_.empty() && placed_.front().where.lane_id != to.exposed.lane_id) {
    SettlePlacedLatched();
  }
  std::size_t n = 0;
  unsigned char* copy = placed_.Room(length, &n);
  while (copy == nullptr && !placed_.empty()) {
    // Goes on as soon as the first write has arrived.
    SettleFirst();
    copy = placed_.Room(length, &n);
  }
  // The peer must take first what was sent again.
  if (copy == nullptr || writes_sent_ != writes_taken_) return 0;
  std::memcpy(copy, from, n);
  const auto place = [&](const rcs_exposure& where, std::uint64_t at,
                         const unsigned char* bytes, std::size_t count) {
    tx_.AssertHeld();
    const std::int64_t end = NowNs() + kPatienceNs;
    for (base::Backoff backoff;; backoff.Wait()) {
      const std::int64_t t = rcs_place(fd_, &where, at, bytes, count);
      if (t > 0 || errno != EAGAIN || NowNs() >= end) return t;
      LookPlacedLatched();
    }
  };
  std::int64_t ticket = place(to.exposed, offset - to.offset, copy, n);
  if (ticket <= 0) {
    // What was placed before is then sent again first.
    if (errno == ENOBUFS) placed_.Refuse();
    return 0;
  }
  // Its number follows, in the order of the queue pair. So the peer knows what
  // it has had, should the lane die before this end does. A number that can't
  // be placed is covered by the next.
  const std::uint64_t number = ++place_number_;
  std::memcpy(copy + n, &number, sizeof number);
  ticket = std::max(ticket,
                    place(peer_counter_, 0, copy + n, Placing::kNumberBytes));
  placed_.Add({offset, copy, n, number, 0, to.exposed, ticket});
  if (!placing_.exchange(true)) started_ = true;
  return static_cast<ssize_t>(n);
}

void Channel::LookPlacedLatched() {
  while (!placed_.empty()) {
    const Placing::Write& first = placed_.front();
    const int there = rcs_placed(fd_, &first.where, first.ticket);
    if (there == 0) return;
    if (there < 0) return Redo();
    placed_.Pop();
  }
  placing_ = false;
}

// The lane is gone, and only the peer can know what has arrived. So all writes
// go once more with their numbers, before anything else.
void Channel::Redo() {
  for (; !placed_.empty(); placed_.Pop()) {
    const Placing::Write& first = placed_.front();
    Record record{};
    record.type = kWrite;
    record.length = static_cast<std::uint32_t>(first.length);
    record.offset = first.offset;
    record.extent = first.number;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&record);
    owed_.insert(owed_.end(), bytes, bytes + sizeof record);
    owed_.insert(owed_.end(), first.from, first.from + first.length);
    ++writes_sent_;
  }
  placing_ = false;
  FlushLatched();
  if (!owed_.empty()) owes_ = true;
}

void Channel::SettleFirst() {
  const std::int64_t begin = NowNs();
  const std::int64_t ticket = placed_.front().ticket;
  for (bool left = false;;) {
    LookPlacedLatched();
    if (placed_.empty() || placed_.front().ticket != ticket) return;
    const std::int64_t waited = NowNs() - begin;
    if (waited > kPatienceNs && !left) {
      // Then the next look finds the lane gone.
      rcs_demote(fd_, 0);
      left = true;
    }
    if (waited > kSpinNs) {
      const timespec brief{0, 50'000};
      ::nanosleep(&brief, nullptr);
    }
  }
}

void Channel::SettlePlacedLatched() {
  while (!placed_.empty()) SettleFirst();
}

void Channel::LookPlaced() {
  if (!placing()) return;
  const base::MutexGuard hold(tx_);
  LookPlacedLatched();
}

void Channel::SettlePlaced() {
  if (!placing()) return;
  const base::MutexGuard hold(tx_);
  SettlePlacedLatched();
}

// --- All paths

Channel::Remote* Channel::FindRemote(std::uint64_t offset) {
  for (Remote& r : remotes_) {
    if (offset >= r.offset && offset - r.offset < r.length) return &r;
  }
  return nullptr;
}

ssize_t Channel::Write(const void* from, std::size_t length,
                       std::uint64_t offset) {
  const base::MutexGuard hold(rx_);
  ProgressLatched();
  rcs_stream_info info{};
  rcs_get_stream_info(fd_, &info, sizeof info);
  Remote* const found = FindRemote(offset);
  if (found == nullptr) {
    errno = EINVAL;
    return -1;
  }
  const Remote to = *found;
  const bool placeable = Placeable(*found, info);
  length = std::min<std::uint64_t>(length, to.length - (offset - to.offset));
  if (length == 0) return 0;
  if (PeerReachable(info.lane) && CaughtUp()) {
    const ssize_t n = WriteDirect(to, from, length, offset);
    if (n > 0) return n;
  }
  if (placeable && CaughtUp()) {
    // The mapping may have ended during the wait for the peer.
    if (FindRemote(offset) == nullptr) {
      errno = EINVAL;
      return -1;
    }
    const ssize_t n = Place(to, from, length, offset);
    if (n > 0) return n;
  }
  const std::size_t piece = std::min(length, kMostPayload);
  const iovec iov{const_cast<void*>(from), piece};
  Record record{};
  record.type = kWrite;
  record.length = static_cast<std::uint32_t>(piece);
  record.offset = offset;
  const base::MutexGuard send(tx_);
  SettlePlacedLatched();
  const ssize_t n = SendRecord(record, &iov, 1, piece);
  if (n > 0) ++writes_sent_;
  return n;
}

}  // namespace rcsock::rsocket
