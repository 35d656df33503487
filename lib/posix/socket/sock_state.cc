// What else a stream does by its engine: its end here, and its readiness.

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/base/poll_now.h"
#include "lib/base/real.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

int Sock::Shutdown(int number, int how) {
  // Nothing is closed.
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) {
    return real::shutdown(number, how);
  }
  Critical critical;
  const bool closed = mode() == Mode::kEngine && TakeTcpEnd();
  tx_latch.lock();
  rx_latch.lock();
  if (!IsAt(number)) [[unlikely]] {
    rx_latch.unlock();
    tx_latch.unlock();
    Sock* const other = LookupHere(number);
    return other != nullptr ? other->Shutdown(number, how)
                            : real::shutdown(number, how);
  }
  int result;
  if (mode() != Mode::kEngine || stream_ == nullptr) {
    if (connected_.load(std::memory_order_relaxed)) HalfClosed();
    rx_latch.unlock();
    tx_latch.unlock();
    // The peer holds back the end of TCP for as long as a lane is agreed.
    CancelSeek();
    result = real::shutdown(number, how);
    return result;
  }
  int error = 0;
  if (stream_->Gone() || (closed && stream_->AtKernel()) ||
      (stream_->Ended() ? real::shutdown(number, how) != 0
                        : stream_->Shut() && stream_->PeerEnded())) {
    error = ENOTCONN;  // and the shutdown is done, as in the kernel
  }
  if (how != SHUT_WR) {
    rd_shut_.Write(tx_latch, rx_latch) = true;
    WakeRx();
  }
  if (how != SHUT_RD) {
    const int r = stream_->ShutdownWrite();
    if (r < 0) error = -r;
    input_alone_.store(false, std::memory_order_release);
    stream_->Progress();
    HandleChanges();
    WakeTx();
    // The kernel makes an edge of it, whatever is asked.
    Registrations::Ready(this);
  }
  rx_latch.unlock();
  tx_latch.unlock();
  if (error != 0) {
    errno = error;
    return -1;
  }
  return 0;
}

namespace {

// Returns what TCP says of its input.  The kernel's poll looks without the
// socket's lock.  An arriving FIN takes its place in the queue before the end
// is marked, and the error of a reset is there before its end.  So a look
// between the two sees input, or the error, and no end.  A thread that is woken
// never meets that; a thread that spins meets it every few ends.  FIONREAD
// takes the lock, so after it the end is marked; and it does not count the FIN.
// An error without an end may also be a completion of MSG_ZEROCOPY, so this
// asks once more, and no more.
std::uint32_t KernelInput(int fd) {
  pollfd one{fd, POLLIN | POLLPRI | POLLRDHUP, 0};
  base::PollNow(&one);
  const bool input = (one.revents & (POLLIN | POLLRDHUP)) == POLLIN;
  const bool error = (one.revents & (POLLERR | POLLHUP)) == POLLERR;
  int bytes = 0;
  if ((input || error) && ::syscall(SYS_ioctl, fd, FIONREAD, &bytes) == 0 &&
      (bytes == 0 || error)) {
    base::PollNow(&one);
  }
  return static_cast<std::uint16_t>(one.revents);
}

}  // namespace

// While a switch is under way its rules say what TCP's end means.  POLLERR may
// be nothing but a completion of MSG_ZEROCOPY.
bool Sock::TcpEndsNext() {
  return stream_->AtKernel() && stream_->tx() == stream::Tx::kRaw &&
         !stream_->WantsAnchorRead() && !HoldsEnd() &&
         (KernelInput(fd()) & (POLLPRI | POLLRDHUP | POLLHUP)) != 0;
}

bool Sock::EndNextLatched() const {
  return lane_is_shm_ && lane_ != nullptr &&
         static_cast<lane::shm::ShmLane*>(lane_.get())->CtlNext();
}

bool Sock::EndNext() {
  Critical critical;
  const base::LatchGuard hold(rx_latch);
  return EndNextLatched();
}

bool Sock::HasRoom(int number, const lane::Lane* lane) {
  const base::LatchGuard hold(tx_latch);
  return (number < 0 || IsAt(number)) && quick_.may_send &&
         (lane == nullptr || lane_.get() == lane) && lane_->Writable() > 0;
}

void Sock::TakeEnd() {
  if (!EndNext()) return;
  Latched latched(this);
  if (mode() != Mode::kEngine) return;
  stream_->Progress();
  HandleChanges();
}

// A reset may have closed the anchor before the conductor heard of it.  The
// stream knows whether that is the connection's end, too.
bool Sock::TakeTcpEnd() {
  TakeEnd();
  if (AskTcpState(fd()) != kTcpClose) return false;
  Latched latched(this);
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Progress();
    HandleChanges();
  }
  return true;
}

// If may_receive is set, the engine has the stream.  Then neither the mode nor
// the stream is read: of thousands of streams they are in no cache.
inline std::uint32_t Sock::RingReadinessLatched(std::uint32_t events,
                                                bool drained, bool* fast,
                                                bool* end) {
  *end = false;
  *fast = quick_.may_receive;
  if (!*fast) return 0;
  bool pending = drained ? lane_->RxLanded() : lane_->RxPending();
  if (pending && lane_->State() != base::Reason::kNone) [[unlikely]] {
    // A dead lane is "pending" whether or not there is anything to read.
    *fast = false;
    return 0;
  }
  // This may be the peer's end, of which more is to be told than input.  A
  // thread that has not shut down and does not ask for RDHUP reads the end, and
  // so learns of it.
  if (pending && ((events & POLLRDHUP) != 0 || !quick_.may_send) &&
      EndNextLatched()) {
    *end = true;
    *fast = false;
    return 0;
  }
  std::uint32_t ready = pending ? kInRing | POLLIN | POLLRDNORM : 0;
  if (rd_shut_) ready |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (rd_shut_ && stream_->Shut()) ready |= POLLHUP;
  return ready;
}

std::uint32_t Sock::WholeReadinessLatched(std::uint32_t events) {
  std::uint32_t ready = stream_->Readiness();
  const bool asks_room = (events & (POLLOUT | POLLWRNORM)) != 0;
  // A receiver that has stopped reading is not to hold the sender.
  if (stream_->FastTx() && (ready & POLLOUT) == 0 && asks_room) WatchStarved();
  if (stream_->tx() == stream::Tx::kRaw && (ready & POLLOUT) != 0 &&
      asks_room && anchor_.IsFull()) {
    // TCP tells the conductor when it takes more.
    ready &= ~static_cast<std::uint32_t>(POLLOUT);
    watch_.WantRoom();
    UpdateWatch();
  }
  if (stream_->AtKernel()) {
    ready |= KernelInput(fd());
  } else if (stream_->tx() == stream::Tx::kRaw &&
             stream_->rx() == stream::Rx::kRaw && (ready & POLLRDHUP) != 0 &&
             !stream_->TxBroken() && !stream_->EndedInOrder()) {
    // TCP's end has been read, and the stream goes back to the kernel
    // (BackToPlain).  The kernel has already told of a reset behind that end.
    ready |= KernelInput(fd()) & (POLLERR | POLLHUP);
  }
  if (ready & POLLIN) ready |= POLLRDNORM;
  if (ready & POLLOUT) ready |= POLLWRNORM;
  if (rd_shut_) ready |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (rd_shut_ && stream_->Shut()) ready |= POLLHUP;
  return ready;
}

std::uint32_t Sock::EngineReadiness(int number, std::uint32_t events,
                                    bool* plain, bool drained) {
  Critical critical;
  const auto gone = [&] { return number >= 0 && !IsAt(number); };
  rx_latch.lock();
  if (gone() || (!quick_.may_receive && mode() != Mode::kEngine)) {
    rx_latch.unlock();
    *plain = true;
    return 0;
  }
  bool fast;
  bool end;
  std::uint32_t ready = RingReadinessLatched(events, drained, &fast, &end);
  rx_latch.unlock();
  if (end) TakeEnd();
  if (fast && (events & (POLLOUT | POLLWRNORM)) == 0) {
    return ready & (events | POLLHUP);
  }
  const base::LatchGuard hold_tx(tx_latch);
  if (mode() != Mode::kEngine || gone()) {
    *plain = true;
    return 0;
  }
  if (fast && stream_->FastTx()) {
    if (lane_->Writable() > 0) {
      ready |= POLLOUT | POLLWRNORM;
    } else {
      WatchStarved();
    }
    return ready & events;
  }
  const base::LatchGuard hold_rx(rx_latch);
  return WholeReadinessLatched(events) & (events | POLLERR | POLLHUP);
}

std::size_t Sock::ReadableLatched() {
  const bool unread = mode() == Mode::kUnread;
  std::size_t n = unread ? read_ahead_.Held().size() : stream_->Readable();
  // What TCP still holds follows what the stream has.  While rx is raw it is
  // the application's, too.
  int more = 0;
  if ((unread || stream_->rx() == stream::Rx::kRaw) &&
      ::syscall(SYS_ioctl, fd(), FIONREAD, &more) == 0 && more > 0) {
    n += static_cast<std::size_t>(more);
    // The application may have had some of these bytes already.
    if (!unread) n -= std::min(n, stream_->Ahead());
  }
  return n;
}

}  // namespace rcsock::posix
