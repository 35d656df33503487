// Connections that come from programs without rcsock: as descriptors that were
// open when this program began (inetd, systemd), or by SCM_RIGHTS.  TCP_INFO
// says how far they have come (sock_travel.cc).  /proc says which processes
// hold them.

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/listing.h"
#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/sharing/other_holders.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/start_aside.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

// A look may overlook a holder that passes the connection on meanwhile, so
// there are two looks.
constexpr int kLooks = 2;

}  // namespace

// The SYN of the end that connects is acknowledged as a byte, and not counted
// as a sent one.
int RoleByTcp(int number) {
  for (int i = 0; i < 8; ++i) {
    struct tcp_info info {};
    struct tcp_info after {};
    int unsent = 0;
    int not_sent = 0;
    constexpr std::size_t kNeeded =
        offsetof(struct tcp_info, tcpi_bytes_retrans) + 8;
    if (AskTcpInfo(number, &info) < kNeeded ||
        ::syscall(SYS_ioctl, number, SIOCOUTQ, &unsent) != 0 ||
        ::syscall(SYS_ioctl, number, SIOCOUTQNSD, &not_sent) != 0 ||
        AskTcpInfo(number, &after) < kNeeded ||
        info.tcpi_state != kTcpEstablished) {
      return -1;
    }
    if (info.tcpi_bytes_acked != after.tcpi_bytes_acked ||
        info.tcpi_bytes_sent != after.tcpi_bytes_sent) {
      continue;
    }
    const std::uint64_t syn = info.tcpi_bytes_acked +
                              static_cast<unsigned>(unsent - not_sent) -
                              (info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
    return syn == 0 ? 1 : syn == 1 ? 0 : -1;
  }
  return -1;
}

// While nothing has been sent, TCP_INFO tells the connection's age.
std::uint64_t BornNs(int number) {
  struct tcp_info info {};
  if (AskTcpInfo(number, &info) <
          offsetof(struct tcp_info, tcpi_bytes_sent) + 8 ||
      info.tcpi_bytes_sent != 0) {
    return 0;
  }
  timespec now{};
  // The age stands still while the host is suspended, as this clock does.  A
  // connection that is older than a suspension seems older than it is.  That is
  // the safe way: fewer processes began before it.
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) -
         std::uint64_t{info.tcpi_last_data_sent} * 1'000'000;
}

Sock* NotedShare::Unknown(int number, bool exec, std::uint64_t until_ns) {
  // A listener, or a socket that may become a listener, is the kernel's.  What
  // it accepts asks the kernel for the options that are set.
  const int state = AskTcpState(number);
  if (state == kTcpListen || state == kTcpClose) return nullptr;
  const Reason reason = exec ? Reason::kPinnedExec : Reason::kPinnedScmRights;
  const Notes notes(number, until_ns);
  int role = notes.Role();
  if (role < 0) role = RoleByTcp(number);
  // A socket that comes by SCM_RIGHTS may be older than this process.  A socket
  // that connects is older than its connection: a process that inherited the
  // socket meanwhile has both.
  const std::uint64_t born = exec && role == 1 ? BornNs(number) : 0;
  std::uint64_t share = 0;
  if (role >= 0 && SeesAllHolders(born)) {
    // The previous program of this process may have noted the share.
    share = exec ? notes.OwnShare() : 0;
    if (share == 0) share = notes.AddShare();
  }
  if (share == 0) {
    // No look can ever find the holders.
    Sock* sock = Sock::New(stream::Role::kConnector, false);
    if (sock == nullptr) return nullptr;
    sock->peer().SetConnected();
    sock->lane_state().Step(LaneState::Event::kForbid);
    sock->search().SetReason(reason);
    sock->tally().Inherit();
    sock->holders().GiveAway();
    return sock;
  }
  Sock* sock = Foreign(number, role, share, reason);
  if (sock == nullptr) return nullptr;
  sock->noted().unknown_.store(kLooks);
  sock->noted().born_ns_ = born;
  return sock;
}

bool NotedShare::OnlyOurNumbers() const {
  bool only = true;
  const std::uint64_t its = sock_->anchor().inode();
  return base::EachDescriptor(0,
                              [&](int number) {
                                if (only && SocketInode(number) == its &&
                                    !base::IsInternalFd(number)) {
                                  only = Named(number) == sock_;
                                }
                              }) &&
         only;
}

namespace {

// The process that has posted a look (a child of fork has not), or 0.
constinit std::atomic<long> look_posted{0};
// When the next look may be: looks take a twentieth of the time at most.
constinit std::atomic<std::uint64_t> next_look_ns{0};

// A look waits for the conductor's start.
constinit std::atomic<bool> look_waits{false};

// Looks in a row that have found no sole holder.
constinit std::atomic<int> fruitless{0};

// Returns the time until the next look.  What makes a look fail mostly stays: a
// process that may not be looked into, or too many descriptors.
std::uint64_t PauseNs(std::uint64_t looked_ns, bool fruitful) {
  constexpr std::uint64_t kMostNs = 60'000'000'000;
  constexpr int kMostDoublings = 12;
  const int before = fruitful ? 0 : fruitless.load(std::memory_order_relaxed);
  fruitless.store(fruitful ? 0 : std::min(before + 1, kMostDoublings),
                  std::memory_order_relaxed);
  return std::min(kMostNs, (10'000'000 + 20 * looked_ns) << before);
}

void PostLook(Conductor* conductor, void (*look)()) {
  const long self = OwnPid();
  if (look_posted.exchange(self) == self) return;
  const std::uint64_t now = base::NowNs();
  const std::uint64_t at = next_look_ns.load(std::memory_order_relaxed);
  const std::uint64_t ms = at > now ? (at - now) / 1'000'000 : 0;
  if (conductor->After(static_cast<std::uint32_t>(ms) + 1, look) == 0) {
    look_posted.store(0);
  }
}

}  // namespace

void NotedShare::AskForHolders() {
  if (unknown_.load(std::memory_order_relaxed) == 0 || InHandler() ||
      OwnFace() != Face::kPreload) {
    return;
  }
  sought_.store(true);
  Critical critical;
  Reason why = Reason::kNone;
  Conductor* conductor = LaneSearch::StartConductor(&why);
  if (why == Reason::kPending) {
    look_waits.store(true);
    // The start may have been over before the look waited for it.
    if (!rendezvous::StartsAside()) conductor = Conductor::IfRunning();
  }
  if (conductor != nullptr) PostLook(conductor, &LookForStrangers);
}

void NotedShare::LookIfAsked(Conductor* conductor) {
  if (look_waits.exchange(false)) PostLook(conductor, &LookForStrangers);
}

void NotedShare::LookForStrangers() {
  constexpr int kMost = 64;
  Sock* socks[kMost];
  Sought all[kMost];
  int count = 0;
  look_posted.store(0);
  ForEachSock([&](Sock* sock) {
    const bool due = sock->noted().sought_.load();
    if (count == kMost || !due || !sock->TryRef()) return;
    struct stat status {};
    if (::syscall(SYS_fstat, sock->fd(), &status) != 0) {
      sock->Unref();
      return;
    }
    socks[count] = sock;
    all[count++] = {sock->anchor().inode(), sock->noted().born_ns_,
                    status.st_uid};
  });
  if (count == 0) return;
  const std::uint64_t start = base::NowNs();
  const bool looked = LookForHolders(all, count);
  const std::uint64_t now = base::NowNs();
  bool more = false;
  bool fruitful = false;
  for (int i = 0; i < count; ++i) {
    Sock* const sock = socks[i];
    // The other holder may let go, so the stream's next calls ask again.
    const bool alone = looked && !all[i].held && sock->noted().OnlyOurNumbers();
    const int left = alone ? sock->noted().unknown_.load() - 1 : kLooks;
    RCSOCK_LOG(
        2, "fd %d: %s", sock->fd(),
        alone ? "nobody else was found to hold it" : "others may hold it");
    if (left <= 0) sock->search().AtOnce();
    fruitful |= alone;
    if (alone && left > 0) {
      more = true;
    } else {
      sock->noted().sought_.store(false);
    }
    sock->noted().unknown_.store(left < 0 ? 0 : left,
                                 std::memory_order_seq_cst);
    sock->Unref();
  }
  // The second look comes at once.
  const std::uint64_t pause = PauseNs(now - start, fruitful);
  next_look_ns.store(more ? 0 : now + pause);
  Conductor* const conductor = Conductor::IfRunning();
  if (more && conductor != nullptr) PostLook(conductor, &LookForStrangers);
}

}  // namespace rcsock::posix
