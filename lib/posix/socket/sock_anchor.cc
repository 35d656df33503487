// The calls that the engine makes on the kernel's connection.
//
// A closed stream may have no number any more, a moment before its end is
// reported.  A call that finds no number here returns, and asks what its own
// number names.

#include "lib/posix/socket/sock_anchor.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "lib/base/backoff.h"
#include "lib/base/clock.h"
#include "lib/base/poll_now.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

namespace {

msghdr MessageOf(const iovec* iov, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(iov);
  message.msg_iovlen =
      static_cast<std::size_t>(count < IOV_MAX ? count : IOV_MAX);
  return message;
}

// Stores what the control messages say of the time.  Returns false if they say
// nothing.
bool StampOf(msghdr* message, std::uint64_t* ns) {
  bool found = false;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    timespec time{};
    if (header->cmsg_type == SO_TIMESTAMPNS &&
        header->cmsg_len >= CMSG_LEN(sizeof time)) {
      std::memcpy(&time, CMSG_DATA(header), sizeof time);
    } else if (header->cmsg_type == SO_TIMESTAMP &&
               header->cmsg_len >= CMSG_LEN(sizeof(timeval))) {
      timeval micro;
      std::memcpy(&micro, CMSG_DATA(header), sizeof micro);
      time = {micro.tv_sec, static_cast<long>(micro.tv_usec) * 1000};
    } else {
      continue;
    }
    *ns = static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
          static_cast<std::uint64_t>(time.tv_nsec);
    found = true;
  }
  return found;
}

// Returns whether one of `events`, POLLERR and POLLHUP holds now.
bool Now(int number, short events) {
  pollfd one{number, events, 0};
  return base::PollNow(&one) > 0;
}

}  // namespace

bool AtMarkOf(int number) {
  int at = 0;
  return ::syscall(SYS_ioctl, number, SIOCATMARK, &at) == 0 && at != 0;
}

// seq_cst: the count rises before the close is looked at.  CloseLast marks the
// close before it looks at the count.
int TcpAnchor::Borrow() {
  borrowers_.fetch_add(1, std::memory_order_seq_cst);
  const int its = sock_->ending().closed() ? -1 : number();
  if (its < 0) GiveBack();
  return its;
}

// A system call takes hardly any time, unless its thread has lost its CPU.
[[gnu::hot]] void TcpAnchor::AwaitBorrowers() const {
  constexpr std::uint64_t kMostNs = 100'000'000;
  if (borrowers_.load(std::memory_order_seq_cst) == 0) return;
  const std::uint64_t deadline = base::NowNs() + kMostNs;
  for (base::Backoff backoff; borrowers_.load(std::memory_order_seq_cst) != 0 &&
                              base::NowNs() < deadline;) {
    backoff.Wait();
  }
}

// TCP's end is not the stream's end while this end does not have the lane that
// both ends have agreed on.  The peer may have had the lane, put its last bytes
// there, and died.  The peer's word that it has the lane is in a queue of the
// conductor's by then, so the wait is short.  The kernel will report its end
// again.  A reset is not held: the kernel, too, loses what it has not delivered
// by then, see killed_with_unread_in_the_switch in tests/posix/kills.  Nor is
// an end held that comes before this end has said that it has adopted the
// stream, which may take longer.  Then the peer does not have the lane.
bool TcpAnchor::HoldsEnd() const {
  return sock_->lane() == nullptr && sock_->lane_state().Agreed() &&
         ends_.load(std::memory_order_relaxed) == Ends::kLater;
}

// The kernel's sets may have told of an end that is there by now.  A read is to
// find it.
void TcpAnchor::BeginHolding() {
  if (ends_.load(std::memory_order_relaxed) != Ends::kNotSaid) return;
  ends_.store(HasEnd() ? Ends::kThere : Ends::kLater,
              std::memory_order_relaxed);
}

ssize_t TcpAnchor::Send(const iovec* iov, int count) {
  if (number() < 0) return -EAGAIN;
  const msghdr message = MessageOf(iov, count);
  const long n =
      ::syscall(SYS_sendmsg, number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return n >= 0 ? n : -errno;
}

bool TcpAnchor::ReadsRaw() const {
  return sock_->engine()->rx() == stream::Rx::kRaw;
}

ssize_t TcpAnchor::Recv(void* to, std::size_t length) {
  if (number() < 0) return -EAGAIN;
  sock_->rx_latch.AssertHeld();
  const long n = sock_->ancillary().Tells(Ancillary::kTime)
                     ? RecvStamped(to, length)
                     : ::syscall(SYS_recvfrom, number(), to, length,
                                 MSG_DONTWAIT, nullptr, nullptr);
  if (n == 0 && HoldsEnd()) return -EAGAIN;
  if (n > 0 && ReadsRaw()) read_ += static_cast<std::uint64_t>(n);
  return n >= 0 ? n : -errno;
}

ssize_t TcpAnchor::RecvV(const iovec* iov, int count, bool peek) {
  if (number() < 0) return -EAGAIN;
  sock_->rx_latch.AssertHeld();
  msghdr message = MessageOf(iov, count);
  const long n = ::syscall(SYS_recvmsg, number(), &message,
                           MSG_DONTWAIT | (peek ? MSG_PEEK : 0));
  if (n == 0 && HoldsEnd()) return -EAGAIN;
  if (n > 0 && !peek) read_ += static_cast<std::uint64_t>(n);
  return n >= 0 ? n : -errno;
}

long TcpAnchor::RecvStamped(void* to, std::size_t length) {
  sock_->rx_latch.AssertHeld();
  iovec iov{to, length};
  alignas(cmsghdr) char control[256];
  msghdr message = MessageOf(&iov, 1);
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = ::syscall(SYS_recvmsg, number(), &message, MSG_DONTWAIT);
  std::uint64_t ns;
  if (n > 0 && ReadsRaw() && StampOf(&message, &ns)) SetCame(ns);
  return n;
}

int TcpAnchor::ShutdownWrite() {
  return ::syscall(SYS_shutdown, number(), SHUT_WR) == 0 ? 0 : -errno;
}

bool TcpAnchor::AtMark() { return AtMarkOf(number()); }

bool TcpAnchor::Ended() { return Now(number(), POLLRDHUP); }

bool TcpAnchor::HasEnd() const {
  pollfd one{number(), POLLRDHUP, 0};
  base::PollNow(&one);
  return (one.revents & (POLLRDHUP | POLLHUP)) != 0;
}

// POLLERR may also be nothing but a completion of MSG_ZEROCOPY: the stream
// proposes when that has been taken.
bool TcpAnchor::Broken() const { return Now(number(), 0); }

bool TcpAnchor::IsFull() const {
  pollfd one{number(), POLLOUT, 0};
  return base::PollNow(&one) == 0;
}

void TcpAnchor::OnForkChild() {
  borrowers_.store(0, std::memory_order_relaxed);
  read_ = 0;
}

}  // namespace rcsock::posix
