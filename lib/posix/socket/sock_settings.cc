#include "lib/posix/socket/sock_settings.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

namespace {

int OptionOf(int fd, int level, int name, int otherwise = 0) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::syscall(SYS_getsockopt, fd, level, name, &value, &size) == 0
             ? value
             : otherwise;
}

// A filter that only its maker can read counts, too.
bool HasFilter(int fd) {
  socklen_t instructions = 0;
  return ::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_GET_FILTER, nullptr,
                   &instructions) == 0
             ? instructions > 0
             : errno == EACCES;
}

// kTLS, for instance.
bool HasUpperProtocol(int fd) {
  char name[16];
  socklen_t size = sizeof name;
  return ::syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_ULP, name, &size) ==
             0 &&
         size > 0;
}

}  // namespace

bool OptionsPin(int number) {
  return OptionOf(number, SOL_SOCKET, SO_RCVLOWAT) > 1 ||
         OptionOf(number, SOL_SOCKET, SO_TIMESTAMPING) != 0 ||
         OptionOf(number, SOL_SOCKET, SO_PEEK_OFF, -1) >= 0 ||
         OptionOf(number, SOL_SOCKET, SO_MAX_PACING_RATE, -1) != -1 ||
         HasFilter(number) || HasUpperProtocol(number);
}

bool IsTcp(int number) {
  return OptionOf(number, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

void Settings::Learn(int number) {
  const long flags = ::syscall(SYS_fcntl, number, F_GETFL);
  if (flags >= 0) {
    sock_->nonblock.store((flags & O_NONBLOCK) != 0, std::memory_order_relaxed);
  }
  const auto learn = [&](int name, std::atomic<std::uint64_t>* to) {
    timeval time{};
    socklen_t size = sizeof time;
    if (::syscall(SYS_getsockopt, number, SOL_SOCKET, name, &time, &size) ==
        0) {
      to->store(TimeoutNs(time), std::memory_order_relaxed);
    }
  };
  learn(SO_RCVTIMEO, &sock_->rcv_timeout_ns);
  learn(SO_SNDTIMEO, &sock_->snd_timeout_ns);
  const auto is_on = [&](int level, int name) {
    return OptionOf(number, level, name) != 0;
  };
  sock_->ancillary().Set(Ancillary::kLeft, is_on(IPPROTO_TCP, TCP_INQ));
  sock_->ancillary().Set(
      Ancillary::kTime,
      is_on(SOL_SOCKET, SO_TIMESTAMP) || is_on(SOL_SOCKET, SO_TIMESTAMPNS));
}

[[gnu::hot]] void Settings::Inherit(Sock* listener) {
  sock_->peer().Inherit(listener->peer());
  constexpr auto kRelaxed = std::memory_order_relaxed;
  sock_->rcv_timeout_ns.store(listener->rcv_timeout_ns.load(kRelaxed),
                              kRelaxed);
  sock_->snd_timeout_ns.store(listener->snd_timeout_ns.load(kRelaxed),
                              kRelaxed);
  sock_->ancillary().Inherit(listener->ancillary());
  if (listener->lane_state().PinnedByOption()) sock_->way_back().PinByOption();
  if (listener->zero_copy().on()) sock_->zero_copy().Set(true);
  if (const auto policy = listener->control().policy();
      policy != ProgramControl::Policy::kAuto) {
    sock_->control().SetPolicy(policy);
  }
}

void Settings::InheritFromUnknown(int number) {
  Learn(number);
  if (OptionsPin(number)) sock_->way_back().PinByOption();
}

void Settings::TakeOver(int number) {
  Learn(number);
  const long flags = ::syscall(SYS_fcntl, number, F_GETFL);
  if (OptionsPin(number) || (flags >= 0 && (flags & O_ASYNC) != 0)) {
    sock_->way_back().Pin(Reason::kPinnedOption);
  }
  if (OptionOf(number, SOL_SOCKET, SO_ZEROCOPY) != 0) {
    sock_->zero_copy().Set(true);
  }
  if (sock_->peer().accepted()) sock_->peer().LearnService(number);
}

// --- SO_SNDBUF
//
// Bounds how much of what a lane sends the peer may leave unread: as TCP, no
// more than the program's SO_SNDBUF allows.

void Settings::BoundSends() {
  Critical critical;
  sock_->tx_latch.lock();
  BoundSendsLatched();
  // A thread that sleeps for room may have some now.
  if (lane::Lane* const lane = sock_->lane()) lane->WakeLocal();
  sock_->tx_latch.unlock();
}

// What TCP would take of a program that has set its SO_SNDBUF: that value, and
// what the peer's buffer has room for.  The kernel reports the value doubled.
// Without SO_SNDBUF the kernel's buffer grows as needed, and so a lane's ring
// is no more.
void Settings::BoundSendsLatched() {
  lane::Lane* const lane = sock_->lane();
  if (lane == nullptr || lane->kind() != lane::Kind::kShm) return;
  const int number = sock_->fd();
  const int saved = errno;
  constexpr int kBufLock = 72;    // SO_BUF_LOCK; since Linux 5.14
  constexpr int kSendLocked = 1;  // SOCK_SNDBUF_LOCK
  int locked = 0;
  int bytes = 0;
  socklen_t size = sizeof locked;
  tcp_info info{};
  if (::syscall(SYS_getsockopt, number, SOL_SOCKET, kBufLock, &locked, &size) ==
          0 &&
      (locked & kSendLocked) != 0 && (size = sizeof bytes) != 0 &&
      ::syscall(SYS_getsockopt, number, SOL_SOCKET, SO_SNDBUF, &bytes, &size) ==
          0 &&
      AskTcpInfo(number, &info) >=
          offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd) {
    lane->BoundUnread(static_cast<std::uint64_t>(bytes) + info.tcpi_snd_wnd);
  }
  errno = saved;
}

}  // namespace rcsock::posix
