// Connections that are passed between processes by SCM_RIGHTS.  Notes on the
// open file (sharing/notes.h) say which processes hold a connection, and how
// far its stream is ahead of what TCP has carried.  TCP_INFO says how far TCP
// has come.

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/log.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_settings.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

namespace {

// This process has connections that its parent had passed, or had been passed.
constinit std::atomic<bool> travelled_by_fork{false};

}  // namespace

// No call sends or receives meanwhile, but TCP does its work.  So each look at
// what is queued, between two at what has been counted, gives bounds.
bool NotedShare::TcpOffsets(std::uint64_t* tx, std::uint64_t* rx) const {
  struct tcp_info info {};
  constexpr std::size_t kNeeded =
      offsetof(struct tcp_info, tcpi_bytes_received) + 8;
  if (AskTcpInfo(sock_->fd(), &info) < kNeeded) return false;
  std::uint64_t least_tx = 0;
  std::uint64_t most_tx = UINT64_MAX;
  std::uint64_t least_rx = 0;
  std::uint64_t most_rx = UINT64_MAX;
  constexpr int kLooks = 100;
  for (int i = 0; i < kLooks; ++i) {
    int unread = 0;
    int unsent = 0;
    const std::uint64_t acked = info.tcpi_bytes_acked;
    const std::uint64_t received = info.tcpi_bytes_received;
    if (::syscall(SYS_ioctl, sock_->fd(), SIOCINQ, &unread) != 0 ||
        ::syscall(SYS_ioctl, sock_->fd(), SIOCOUTQ, &unsent) != 0 ||
        AskTcpInfo(sock_->fd(), &info) < kNeeded ||
        // The kernel counts a FIN as a byte.
        info.tcpi_state != kTcpEstablished) {
      return false;
    }
    const auto to_send = static_cast<unsigned>(unsent);
    const auto to_read = static_cast<unsigned>(unread);
    least_tx = std::max(least_tx, acked + to_send);
    most_tx = std::min<std::uint64_t>(most_tx, info.tcpi_bytes_acked + to_send);
    if (received >= to_read) least_rx = std::max(least_rx, received - to_read);
    most_rx =
        std::min<std::uint64_t>(most_rx, info.tcpi_bytes_received - to_read);
    if (least_tx < most_tx || least_rx < most_rx) continue;
    // The SYN of the end that connects is acknowledged as a byte.
    const std::uint64_t syn = sock_->peer().accepted() ? 0 : 1;
    if (least_tx != most_tx || least_rx != most_rx || most_tx < syn) {
      return false;  // a holder does send or receive
    }
    *tx = most_tx - syn;
    *rx = most_rx;
    return true;
  }
  return false;
}

void NotedShare::MeasureDrift() {
  AssertLatched(sock_);
  std::uint64_t tx, rx;
  // A filter may know none of these calls.
  const bool may = ProcessPinned() != Reason::kSandboxed;
  drift_known_ = may && TcpOffsets(&tx, &rx);
  if (!may) return;
  if (!drift_known_) {
    Notes(sock_->fd()).Spoil();
    return;
  }
  drift_.tx = static_cast<std::int64_t>(sock_->engine()->tx_off() - tx);
  drift_.rx = static_cast<std::int64_t>(sock_->engine()->rx_off() - rx);
  // The note is for later holders of the connection.
  const Notes notes(sock_->fd());
  drift_known_ =
      notes.SetRole(sock_->peer().accepted() ? 1 : 0) && notes.SetDrift(drift_);
}

bool NotedShare::TakeOffsets() {
  AssertLatched(sock_);
  if (!Travels()) return true;
  std::uint64_t tx, rx;
  if (!drift_known_ || !TcpOffsets(&tx, &rx)) return false;
  // Another holder may have noted anything.
  if (static_cast<std::int64_t>(tx) + drift_.tx < 0 ||
      static_cast<std::int64_t>(rx) + drift_.rx < 0) {
    return false;
  }
  tx += static_cast<std::uint64_t>(drift_.tx);
  rx += static_cast<std::uint64_t>(drift_.rx);
  // Other holders have counted what they have moved.
  PlainCalls& calls = sock_->calls();
  sock_->tally().OthersMoved(tx - calls.tx(), rx - calls.rx());
  calls.SetMoved(tx, rx);
  return true;
}

bool NotedShare::AloneByNotes(bool unspoilt) const {
  return sock_->fd() >= 0 && unknown_.load(std::memory_order_seq_cst) == 0 &&
         Notes(sock_->fd())
             .Alone(share_.load(std::memory_order_seq_cst), unspoilt);
}

bool NotedShare::Travel(int number, std::uint64_t to, std::uint32_t tag) {
  if (!sock_->peer().connected() || sock_->ending().closed() ||
      sock_->holders().given_away() || sock_->way_back().IsHalfClosed() ||
      sock_->lane_state().Pinned() || sock_->lane_state().Never() ||
      sock_->zero_copy().on() || OwnFace() != Face::kPreload ||
      ProcessPinned() != Reason::kNone || InBorrowedMemory()) {
    return false;
  }
  const Notes notes(number);
  if (!Travels()) {
    const std::uint64_t share = notes.AddShare();
    std::uint64_t none = 0;
    if (share == 0) return false;
    if (!share_.compare_exchange_strong(none, share)) {
      notes.DropShare(share);  // another thread passes it, too
    }
    const bool accepted = sock_->peer().accepted();
    if (!notes.SetRole(accepted ? 1 : 0)) return false;
    sock_->anchor().SetInode(SocketInode(number));
    travels_.store(true, std::memory_order_seq_cst);
    // A child that was forked before this knows of no share, and would take the
    // connection for its own.  The caller's Pin tells it by the Holding.  A
    // fork that begins later copies the share.
    if (Forking() || !sock_->holders().EndOfFamily()) return false;
  }
  // The note comes first, so that TryAdopt sees it if this thread does not see
  // what TryAdopt did.
  if (!notes.AddFlight(to, tag)) return false;
  bool noted = sock_->way_back().ToPlain(Reason::kPinnedScmRights) &&
               sock_->read_ahead().Bytes() == 0;
  if (noted) {
    Latched latched(sock_);
    // A lane may have come and gone since.
    noted = sock_->mode() == Mode::kPlain && drift_known_;
  }
  if (!noted) {
    notes.DropFlight(to, tag);
    return false;
  }
  reason_ = Reason::kPinnedScmRights;
  sock_->search().SetReason(reason_);
  RCSOCK_LOG(2, "fd %d: passed on", number);
  return true;
}

void NotedShare::Leave(int number) {
  if (!Travels()) return;
  if (sock_->holders().given_away()) {
    // A program that is not followed has the connection, maybe for longer.  The
    // share stays in its name, and holders that got the connection by a message
    // stay on TCP.
    travels_.store(false, std::memory_order_seq_cst);
    return;
  }
  if (ProcessPinned() == Reason::kSandboxed || number < 0) {
    sock_->holders().GiveAway();
  } else if (sock_->holders().EndOfFamily() && !AloneByNotes(false)) {
    // Other processes have the connection, or may have it.  A call that is
    // still in the kernel with it may take their bytes.  Then the share stays,
    // and they stay on TCP.
    sock_->holders().GiveAway();
    if (NobodyInside(sock_)) Notes(number).DropShare(share_.load());
  }
  travels_.store(false, std::memory_order_seq_cst);
}

// Returns the stream of another number of this connection in this process, or
// null.
static Sock* Twin(int number, const Notes& notes) {
  if (notes.OwnShare() == 0 && !travelled_by_fork.load()) return nullptr;
  const std::uint64_t inode = SocketInode(number);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    // No hidden stream travels.
    if (const File* file = Entry(fd); file == nullptr || file->Hidden()) {
      continue;
    }
    Sock* sock = LookupSock(fd);
    if (sock != nullptr && fd != number && sock->noted().Travels() &&
        sock->anchor().inode() == inode && SocketInode(fd) == inode) {
      return sock;
    }
  }
  return nullptr;
}

Sock* NotedShare::Arrived(int number, std::uint64_t to, bool peek,
                          std::uint64_t until_ns) {
  const Notes notes(number, until_ns);
  // This look also finds a connection whose sender has noted nothing.
  if (Sock* twin = Twin(number, notes)) {
    // One more number of the connection, as by dup.
    if (!peek) notes.DropShare(notes.Arrive(to, false));
    CopyFd(twin->fd(), number);
    return twin;
  }
  const int role = notes.Role();
  if (role < 0) return nullptr;
  const std::uint64_t share = notes.Arrive(to, peek);
  if (share == 0) return nullptr;
  // Without memory no process takes the share back: all stay on TCP.
  Sock* const sock = Foreign(number, role, share, Reason::kPinnedScmRights);
  if (sock == nullptr) return nullptr;
  Bind(number, sock);
  RCSOCK_LOG(2, "fd %d: came from another process", number);
  return sock;
}

Sock* NotedShare::Foreign(int number, int role, std::uint64_t share,
                          Reason reason) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  if (::syscall(SYS_getpeername, number, address, &length) != 0) {
    return nullptr;
  }
  Sock* sock = Sock::New(
      role == 1 ? stream::Role::kAcceptor : stream::Role::kConnector, false);
  if (sock == nullptr) return nullptr;
  // No other thread knows the stream yet.
  sock->tx_latch.AssertUnshared();
  sock->rx_latch.AssertUnshared();
  NotedShare& noted = sock->noted();
  noted.share_.store(share);
  noted.travels_.store(true);
  sock->anchor().SetInode(SocketInode(number));
  sock->anchor().SetNumber(number);
  noted.LearnDrift(number);
  std::uint64_t tx = 0;
  std::uint64_t rx = 0;
  // For the statistics: others may use the connection at this moment.
  if (noted.TcpOffsets(&tx, &rx)) {
    tx += static_cast<std::uint64_t>(noted.drift_.tx);
    rx += static_cast<std::uint64_t>(noted.drift_.rx);
  }
  sock->tally().JoinAt(tx, rx);
  sock->tally().Inherit();
  noted.reason_ = reason;
  sock->search().SetReason(reason);
  Settings(sock).TakeOver(number);
  sock->peer().Set(number, address, length);
  // A half-closed stream stays on TCP.
  if (AskTcpState(number) != kTcpEstablished) {
    sock->lane_state().Step(LaneState::Event::kPin);
  }
  sock->search().Allow();
  return sock;
}

void NotedShare::LearnDrift(int number) { drift_ = Notes(number).GetDrift(); }

void NotedShare::LeaveForExec() {
  const std::uint64_t share = share_.load();
  if (!Travels() || share == 0 || !sock_->holders().EndOfFamily() ||
      sock_->holders().given_away()) {
    return;
  }
  Notes(sock_->fd()).DropShare(share);
  share_.store(0);
}

void NotedShare::ExecFailed() {
  if (Travels() && share_.load() == 0) {
    share_.store(Notes(sock_->fd()).AddShare());
  }
}

void NotedShare::OnForkChild() {
  if (Travels()) travelled_by_fork.store(true);
  sought_.store(false);
}

}  // namespace rcsock::posix
