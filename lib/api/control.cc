// What rcsock.h has beyond POSIX.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "lib/api/device_data.h"
#include "lib/base/clock.h"
#include "lib/base/fail.h"
#include "lib/base/latch.h"
#include "lib/base/reason.h"
#include "lib/include/rcsock/rcsock.h"
#include "lib/lane/rdma/qp_lane.h"
#include "lib/lane/rdma/user_memory.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/recv_in_place.h"
#include "lib/posix/socket/sock_place.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace posix = rcsock::posix;
using posix::Sock;
using posix::StreamFacts;
using rcsock::base::Fail;
using rcsock::lane::rdma::UserMemory;

namespace {

// Returns the stream behind `fd`; null with errno.
Sock* Find(int fd) {
  if (Sock* sock = posix::LookupSock(fd)) return sock;
  int type = 0;
  socklen_t size = sizeof type;
  // The kernel says EBADF or ENOTSOCK.
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0) {
    errno = EOPNOTSUPP;
  }
  return nullptr;
}

std::int32_t LaneOf(const StreamFacts& info) {
  if (!info.on_lane) return RCS_TCP;
  return info.kind == rcsock::lane::Kind::kRdma ? RCS_RDMA : RCS_SHM;
}

int Give(const void* from, std::size_t have, void* to, std::size_t size) {
  const std::size_t n = size < have ? size : have;
  std::memcpy(to, from, n);
  return static_cast<int>(n);
}

rcs_lane_counts Counts(const posix::LaneCounts& of) {
  return {of.streams.load(), of.tx_bytes.load(), of.rx_bytes.load()};
}

}  // namespace

// If the program runs under the preload, the preload's own function answers.
// The preload comes first, so the calls of a linked program never get here. A
// program that has asked dlsym gets here.
#define RCSOCK_FORWARD(name, fallback, ...)                              \
  if (posix::OwnFace() == posix::Face::kBehind) {                        \
    static const auto first =                                            \
        reinterpret_cast<decltype(&name)>(::dlsym(RTLD_DEFAULT, #name)); \
    if (first != nullptr) return first(__VA_ARGS__);                     \
    errno = EOPNOTSUPP;                                                  \
    return fallback;                                                     \
  }

RCSOCK_EXPORT int rcs_get_lane(int fd) {
  RCSOCK_FORWARD(rcs_get_lane, -1, fd)
  Sock* sock = Find(fd);
  return sock == nullptr ? -1 : LaneOf(sock->tally().Describe());
}

RCSOCK_EXPORT const char* rcs_get_reason(int fd) {
  RCSOCK_FORWARD(rcs_get_reason, nullptr, fd)
  Sock* sock = Find(fd);
  return sock == nullptr
             ? nullptr
             : rcsock::base::ReasonKey(sock->tally().Describe().reason);
}

RCSOCK_EXPORT int rcs_get_stream_info(int fd, rcs_stream_info* info,
                                      size_t size) {
  RCSOCK_FORWARD(rcs_get_stream_info, -1, fd, info, size)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (info == nullptr) return Fail(EFAULT);
  const StreamFacts from = sock->tally().Describe();
  rcs_stream_info all{};
  all.lane = LaneOf(from);
  all.policy = static_cast<std::int32_t>(sock->control().policy());
  std::strncpy(all.reason, rcsock::base::ReasonKey(from.reason),
               sizeof all.reason - 1);
  all.tx_bytes = from.tx_bytes;
  all.rx_bytes = from.rx_bytes;
  all.lane_tx_bytes = from.lane_tx_bytes;
  all.lane_rx_bytes = from.lane_rx_bytes;
  all.demotions = from.demotions;
  all.lane_id = from.on_lane ? from.epoch : 0;
  return Give(&all, sizeof all, info, size);
}

RCSOCK_EXPORT int rcs_get_process_info(rcs_process_info* info, size_t size) {
  RCSOCK_FORWARD(rcs_get_process_info, -1, info, size)
  if (info == nullptr) return Fail(EFAULT);
  const auto now = posix::CountAll();
  if (now == nullptr) return Fail(ENOMEM);
  rcs_process_info all{};
  all.streams = now->streams.load();
  all.promoted = now->promoted.load();
  all.demotions = now->demotions.load();
  all.failovers = now->failovers.load();
  all.lanes[RCS_TCP] = Counts(now->tcp);
  all.lanes[RCS_SHM] = Counts(now->shm);
  all.lanes[RCS_RDMA] = Counts(now->rdma);
  return Give(&all, sizeof all, info, size);
}

RCSOCK_EXPORT int rcs_set_policy(int fd, int policy) {
  RCSOCK_FORWARD(rcs_set_policy, -1, fd, policy)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (policy < RCS_POLICY_AUTO || policy > RCS_POLICY_EAGER) {
    return Fail(EINVAL);
  }
  const int saved = errno;
  sock->control().SetPolicy(static_cast<posix::ProgramControl::Policy>(policy));
  errno = saved;
  return 0;
}

RCSOCK_EXPORT int rcs_get_policy(int fd) {
  RCSOCK_FORWARD(rcs_get_policy, -1, fd)
  Sock* sock = Find(fd);
  return sock == nullptr ? -1 : static_cast<int>(sock->control().policy());
}

RCSOCK_EXPORT int rcs_promote(int fd) {
  RCSOCK_FORWARD(rcs_promote, -1, fd)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  const int saved = errno;
  const int error = sock->control().PromoteNow();
  errno = saved;
  return error == 0 ? 0 : Fail(error);
}

RCSOCK_EXPORT int rcs_demote(int fd, int timeout_ms) {
  RCSOCK_FORWARD(rcs_demote, -1, fd, timeout_ms)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  const int saved = errno;
  const std::uint64_t limit =
      timeout_ms < 0 ? 5000 : static_cast<std::uint64_t>(timeout_ms);
  const int error =
      sock->control().DemoteNow(rcsock::base::NowNs() + limit * 1'000'000);
  errno = saved;
  return error == 0 ? 0 : Fail(error);
}

RCSOCK_EXPORT int rcs_register_buffer(void* address, size_t length) {
  RCSOCK_FORWARD(rcs_register_buffer, -1, address, length)
  const int error = UserMemory::Add(address, length);
  return error == 0 ? 0 : Fail(error);
}

RCSOCK_EXPORT int rcs_unregister_buffer(void* address, size_t length) {
  RCSOCK_FORWARD(rcs_unregister_buffer, -1, address, length)
  const int error = UserMemory::Remove(address, length);
  return error == 0 ? 0 : Fail(error);
}

namespace {

// For fewer bytes a copy costs less.
constexpr std::size_t kLeastDirect = 16 * 1024;

// Runs `f` with the stream's RDMA lane, under the latch of sending. Returns
// false if there is none.
template <class F>
bool WithDevice(Sock* sock, F&& f) {
  using rcsock::lane::rdma::QpLane;
  posix::Critical critical;
  const rcsock::base::LatchGuard hold(sock->tx_latch);
  rcsock::lane::Lane* lane =
      sock->mode() == posix::Mode::kEngine ? sock->lane() : nullptr;
  if (lane == nullptr || lane->kind() != rcsock::lane::Kind::kRdma) {
    return false;
  }
  f(static_cast<QpLane*>(lane));
  return true;
}

// Sends straight from a device's memory while an RDMA lane has room for it, and
// through host memory otherwise. A short copy waits for room.
ssize_t SendOfDevice(Sock* sock, int fd, rcsock::gpu::Memory* device,
                     const std::byte* from, std::size_t length, int flags) {
  constexpr std::size_t kPiece = 64 * 1024;
  // The RDMA device would send the old bytes of memory that was freed.
  const int gone = device->Check(from, length);
  if (gone != 0) return Fail(gone);
  std::size_t done = 0;
  while (length - done >= kLeastDirect) {
    const ssize_t n =
        posix::Placement(sock).SendDirect(fd, from + done, length - done);
    if (n < 0) break;
    done += static_cast<std::size_t>(n);
    rcsock::gpu::counts.devices.fetch_add(static_cast<std::uint64_t>(n),
                                          std::memory_order_relaxed);
    if (n != 0) continue;
    const std::size_t piece = std::min(kPiece, length - done);
    const ssize_t m = rcsock::api::SendFromDevice(sock, fd, device, from + done,
                                                  piece, flags, done != 0);
    if (m < 0 && done == 0) return m;
    if (m > 0) done += static_cast<std::size_t>(m);
    if (m != static_cast<ssize_t>(piece)) return static_cast<ssize_t>(done);
  }
  if (done == length) return static_cast<ssize_t>(done);
  const ssize_t rest = rcsock::api::SendFromDevice(
      sock, fd, device, from + done, length - done, flags, done != 0);
  if (done == 0) return rest;
  return static_cast<ssize_t>(done) + std::max<ssize_t>(rest, 0);
}

// Posts within the scope of this object may go straight from the memory. The
// object's destructor ends that on cancellation too, which unwinds the thread.
class DirectSend {
 public:
  DirectSend(Sock* sock, std::shared_ptr<UserMemory> memory, rcs_sent* sent)
      : sock_(sock), sent_(sent) {
    WithDevice(sock_, [&](auto* lane) {
      lane_ = lane->serial();
      before_ = lane->SentTicket();
      lane->SendFrom(std::move(memory));
    });
  }
  ~DirectSend() {
    if (lane_ == 0) return;
    WithDevice(sock_, [&](auto* lane) {
      if (lane->serial() != lane_) return;
      lane->SendFrom(nullptr);
      if (lane->SentTicket() == before_) return;
      *sent_ = {lane_, 0, lane->Posted(), lane->SentTicket()};
    });
  }
  DirectSend(const DirectSend&) = delete;
  DirectSend& operator=(const DirectSend&) = delete;

 private:
  Sock* const sock_;
  rcs_sent* const sent_;
  std::uint32_t lane_ = 0;
  std::int64_t before_ = 0;
};

}  // namespace

RCSOCK_EXPORT ssize_t rcs_send_registered(int fd, const void* from,
                                          size_t length, int flags,
                                          rcs_sent* sent) {
  RCSOCK_FORWARD(rcs_send_registered, -1, fd, from, length, flags, sent)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (sent == nullptr || from == nullptr) return Fail(EFAULT);
  auto memory = UserMemory::Find(from, length);
  if (memory == nullptr) return Fail(EINVAL);
  *sent = {0, 1, 0, 0};
  rcsock::gpu::Memory* const device = length != 0 ? memory->device() : nullptr;
  if (device != nullptr) {
    // The kernel would read a slot after the slot holds other bytes; and only
    // the whole call's last byte is urgent.
    if ((flags & (MSG_ZEROCOPY | MSG_OOB)) != 0) return Fail(EOPNOTSUPP);
    const auto* at = static_cast<const std::byte*>(from);
    // The call keeps the memory for as long as it needs it.
    const std::shared_ptr<UserMemory> kept = memory;
    const DirectSend direct(sock, std::move(memory), sent);
    return SendOfDevice(sock, fd, device, at, length, flags);
  }
  if (length < kLeastDirect) return posix::hook::send(fd, from, length, flags);
  const DirectSend direct(sock, std::move(memory), sent);
  return posix::hook::send(fd, from, length, flags);
}

RCSOCK_EXPORT int rcs_sent_done(int fd, rcs_sent* sent, int may_copy) {
  RCSOCK_FORWARD(rcs_sent_done, -1, fd, sent, may_copy)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (sent == nullptr) return Fail(EFAULT);
  if (sent->lane == 0) return 1;
  const int saved = errno;
  bool done = true;
  bool copied = true;
  WithDevice(sock, [&](auto* lane) {
    // A stream leaves its lane with a copy of what the peer has not taken.
    if (lane->serial() != sent->lane) return;
    done = lane->SentDone(sent->ticket, sent->posted, may_copy != 0, &copied);
  });
  errno = saved;
  if (!done) return 0;
  sent->lane = 0;
  sent->copied = copied ? 1 : 0;
  return 1;
}

RCSOCK_EXPORT ssize_t rcs_recv_registered(int fd, void* to, size_t length,
                                          int flags) {
  RCSOCK_FORWARD(rcs_recv_registered, -1, fd, to, length, flags)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (to == nullptr) return Fail(EFAULT);
  const auto memory = UserMemory::Find(to, length);
  if (memory == nullptr) return Fail(EINVAL);
  // MSG_TRUNC puts nothing there.
  if (memory->device() != nullptr && length != 0 && (flags & MSG_TRUNC) == 0) {
    return rcsock::api::RecvToDevice(
        sock, fd, memory->device(), static_cast<std::byte*>(to), length, flags);
  }
  const posix::RecvRegistered registered;
  return posix::hook::recv(fd, to, length, flags);
}

RCSOCK_EXPORT int rcs_expose(int fd, void* address, size_t length,
                             rcs_exposure* what) {
  RCSOCK_FORWARD(rcs_expose, -1, fd, address, length, what)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (what == nullptr || address == nullptr) return Fail(EFAULT);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (length == 0 || at + length < at) return Fail(EINVAL);
  rcs_exposure made{at, length, 0, 0};
  const int error =
      posix::Placement(sock).Expose(address, length, &made.lane_id, &made.key);
  if (error != 0) return Fail(error);
  *what = made;
  return 0;
}

RCSOCK_EXPORT int rcs_hide(int fd, const rcs_exposure* what) {
  RCSOCK_FORWARD(rcs_hide, -1, fd, what)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (what == nullptr) return Fail(EFAULT);
  const int saved = errno;
  posix::Placement(sock).Hide(what->lane_id, what->key);
  errno = saved;
  return 0;
}

RCSOCK_EXPORT int64_t rcs_place(int fd, const rcs_exposure* where,
                                uint64_t offset, const void* from,
                                size_t length) {
  RCSOCK_FORWARD(rcs_place, -1, fd, where, offset, from, length)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (where == nullptr || from == nullptr) return Fail(EFAULT);
  // The peer names the place: it can put only its own memory at risk.
  const rcs_exposure to = *where;
  if (length == 0 || offset > to.length || length > to.length - offset ||
      to.address + to.length < to.address) {
    return Fail(EINVAL);
  }
  const int saved = errno;
  const std::int64_t ticket = posix::Placement(sock).Place(
      to.lane_id, from, length, to.address + offset, to.key);
  errno = saved;
  return ticket > 0 ? ticket : Fail(static_cast<int>(-ticket));
}

RCSOCK_EXPORT int rcs_placed(int fd, const rcs_exposure* where,
                             int64_t ticket) {
  RCSOCK_FORWARD(rcs_placed, -1, fd, where, ticket)
  Sock* sock = Find(fd);
  if (sock == nullptr) return -1;
  if (where == nullptr) return Fail(EFAULT);
  if (ticket <= 0) return Fail(EINVAL);
  const int saved = errno;
  const int result = posix::Placement(sock).Placed(where->lane_id, ticket);
  errno = saved;
  return result >= 0 ? result : Fail(-result);
}

RCSOCK_EXPORT uint32_t rcs_version(void) { return RCSOCK_VERSION; }
