#include "lib/posix/socket/sock_looks.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "lib/base/poll_now.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

namespace {

// Returns what TCP says of its input.  The kernel's poll looks without the
// socket's lock.  An arriving FIN takes its place in the queue before the end
// is marked, and the error of a reset is there before its end.  So a look
// between the two sees input, or the error, and no end.  A thread that is woken
// never meets that; a thread that spins meets it every few ends.  FIONREAD
// takes the lock, so after it the end is marked; and it does not count the FIN.
// An error without an end may also be a completion of MSG_ZEROCOPY, so this
// asks once more, and no more.
std::uint32_t KernelInput(int number) {
  pollfd one{number, POLLIN | POLLPRI | POLLRDHUP, 0};
  base::PollNow(&one);
  const bool input = (one.revents & (POLLIN | POLLRDHUP)) == POLLIN;
  const bool error = (one.revents & (POLLERR | POLLHUP)) == POLLERR;
  int bytes = 0;
  if ((input || error) && ::syscall(SYS_ioctl, number, FIONREAD, &bytes) == 0 &&
      (bytes == 0 || error)) {
    base::PollNow(&one);
  }
  return static_cast<std::uint16_t>(one.revents);
}

// Returns `told`, what TCP says of its input, without TCP's end.  The bytes
// before the end are input.
std::uint32_t WithoutEnd(int number, std::uint32_t told) {
  if ((told & (POLLRDHUP | POLLHUP)) == 0) return told;
  told &= ~std::uint32_t{POLLRDHUP | POLLHUP};
  int bytes = 0;
  if (::syscall(SYS_ioctl, number, FIONREAD, &bytes) == 0 && bytes == 0) {
    told &= ~std::uint32_t{POLLIN};
  }
  return told;
}

}  // namespace

// While a switch is under way its rules say what TCP's end means.  POLLERR may
// be nothing but a completion of MSG_ZEROCOPY.
bool Looks::TcpEndsNext() const {
  sock_->rx_latch.AssertHeld();
  return sock_->stream_->AtKernel() &&
         sock_->stream_->tx() == stream::Tx::kRaw &&
         !sock_->stream_->WantsAnchorRead() && !sock_->anchor().HoldsEnd() &&
         (KernelInput(sock_->fd()) & (POLLPRI | POLLRDHUP | POLLHUP)) != 0;
}

bool Looks::EndNextLatched() const {
  return sock_->lane_is_shm_ && sock_->lane_ != nullptr &&
         static_cast<lane::shm::ShmLane*>(sock_->lane_.get())->CtlNext();
}

bool Looks::EndNext() {
  Critical critical;
  const base::LatchGuard hold(sock_->rx_latch);
  return EndNextLatched();
}

bool Looks::HasRoom(Sock* sock, int number, const lane::Lane* lane) {
  const base::LatchGuard hold(sock->tx_latch);
  return (number < 0 || sock->IsAt(number)) && sock->quick_.may_send &&
         (lane == nullptr || sock->lane_.get() == lane) &&
         sock->lane_->Writable() > 0;
}

void Looks::TakeEnd() {
  if (!EndNext()) return;
  Latched latched(sock_);
  if (sock_->mode() != Mode::kEngine) return;
  sock_->stream_->Progress();
  sock_->HandleChanges();
}

// A reset may have closed the anchor before the conductor heard of it.  The
// stream knows whether that is the connection's end, too.
bool Looks::TakeTcpEnd() {
  TakeEnd();
  if (AskTcpState(sock_->fd()) != kTcpClose) return false;
  Latched latched(sock_);
  if (sock_->mode() == Mode::kEngine && sock_->stream_ != nullptr) {
    sock_->stream_->Progress();
    sock_->HandleChanges();
  }
  return true;
}

// If may_receive is set, the engine has the stream.  Then neither the mode nor
// the stream is read: of thousands of streams they are in no cache.
inline std::uint32_t Looks::RingReadinessLatched(Sock* sock,
                                                 std::uint32_t events,
                                                 bool drained, bool* fast,
                                                 bool* end) {
  *end = false;
  *fast = sock->quick_.may_receive;
  if (!*fast) return 0;
  bool pending = drained ? sock->lane_->RxLanded() : sock->lane_->RxPending();
  if (pending && sock->lane_->State() != base::Reason::kNone) [[unlikely]] {
    // A dead lane is "pending" whether or not there is anything to read.
    *fast = false;
    return 0;
  }
  // The next message may be the peer's end, of which Readiness tells more than
  // input.  A thread that has not shut down and does not ask for RDHUP reads
  // the end, and so learns of it.
  if (pending && ((events & POLLRDHUP) != 0 || !sock->quick_.may_send) &&
      Looks(sock).EndNextLatched()) {
    *end = true;
    *fast = false;
    return 0;
  }
  std::uint32_t ready = pending ? kInRing | POLLIN | POLLRDNORM : 0;
  if (sock->rd_shut_) ready |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (sock->rd_shut_ && sock->stream_->Shut()) ready |= POLLHUP;
  return ready;
}

std::uint32_t Looks::WholeReadinessLatched(Sock* sock, std::uint32_t events) {
  std::uint32_t ready = sock->stream_->Readiness();
  const bool asks_room = (events & (POLLOUT | POLLWRNORM)) != 0;
  // A receiver that has stopped reading is not to hold the sender.
  if (sock->stream_->FastTx() && (ready & POLLOUT) == 0 && asks_room)
    sock->starvation().Watch();
  if (sock->stream_->tx() == stream::Tx::kRaw && (ready & POLLOUT) != 0 &&
      asks_room && sock->anchor().IsFull()) {
    // TCP tells the conductor when it takes more.
    ready &= ~static_cast<std::uint32_t>(POLLOUT);
    sock->watch().WantRoom();
    sock->UpdateWatch();
  }
  if (sock->stream_->AtKernel()) {
    std::uint32_t told = KernelInput(sock->fd());
    // A read would not find the end.  A reset is not held.
    if ((told & POLLERR) == 0 && sock->anchor().HoldsEnd()) [[unlikely]] {
      told = WithoutEnd(sock->fd(), told);
    }
    ready |= told;
  } else if (sock->stream_->tx() == stream::Tx::kRaw &&
             sock->stream_->rx() == stream::Rx::kRaw &&
             (ready & POLLRDHUP) != 0 && !sock->stream_->TxBroken() &&
             !sock->stream_->EndedInOrder()) {
    // TCP's end has been read, and the stream goes back to the kernel
    // (BackToPlain).  The kernel has already told of a reset behind that end.
    ready |= KernelInput(sock->fd()) & (POLLERR | POLLHUP);
  }
  if (ready & POLLIN) ready |= POLLRDNORM;
  if (ready & POLLOUT) ready |= POLLWRNORM;
  if (sock->rd_shut_) ready |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (sock->rd_shut_ && sock->stream_->Shut()) ready |= POLLHUP;
  return ready;
}

std::uint32_t Looks::EngineReadiness(Sock* sock, int number,
                                     std::uint32_t events, bool* plain,
                                     bool drained) {
  Critical critical;
  const auto gone = [&] { return number >= 0 && !sock->IsAt(number); };
  sock->rx_latch.lock();
  if (gone() || (!sock->quick_.may_receive && sock->mode() != Mode::kEngine)) {
    sock->rx_latch.unlock();
    *plain = true;
    return 0;
  }
  bool fast;
  bool end;
  std::uint32_t ready =
      RingReadinessLatched(sock, events, drained, &fast, &end);
  sock->rx_latch.unlock();
  if (end) Looks(sock).TakeEnd();
  if (fast && (events & (POLLOUT | POLLWRNORM)) == 0) {
    return ready & (events | POLLHUP);
  }
  const base::LatchGuard hold_tx(sock->tx_latch);
  if (sock->mode() != Mode::kEngine || gone()) {
    *plain = true;
    return 0;
  }
  if (fast && sock->stream_->FastTx()) {
    if (sock->lane_->Writable() > 0) {
      ready |= POLLOUT | POLLWRNORM;
    } else {
      sock->starvation().Watch();
    }
    return ready & events;
  }
  const base::LatchGuard hold_rx(sock->rx_latch);
  return WholeReadinessLatched(sock, events) & (events | POLLERR | POLLHUP);
}

std::size_t Looks::ReadableLatched() {
  AssertLatched(sock_);
  const bool unread = sock_->mode() == Mode::kUnread;
  std::size_t n =
      unread ? sock_->read_ahead().Held().size() : sock_->stream_->Readable();
  // What TCP still holds follows what the stream has.  While rx is raw it is
  // the application's, too.
  int more = 0;
  if ((unread || sock_->stream_->rx() == stream::Rx::kRaw) &&
      ::syscall(SYS_ioctl, sock_->fd(), FIONREAD, &more) == 0 && more > 0) {
    n += static_cast<std::size_t>(more);
    // The application may have had some of these bytes already.
    if (!unread) n -= std::min(n, sock_->stream_->Ahead());
  }
  return n;
}

}  // namespace rcsock::posix
