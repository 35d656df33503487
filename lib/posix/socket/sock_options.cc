// TCP_CORK and TCP_NODELAY of a stream that the engine owns.  They say when the
// kernel sends what it was given.  On a lane everything is sent at once, so
// they have no effect, and programs set them for every answer.  The engine
// keeps them here, and tells them to the kernel when the stream goes back.
// Meanwhile TCP carries the frames of the switch above all.  These must not
// wait for an acknowledgement that the peer delays (40 ms), nor behind a cork
// (200 ms).

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

constexpr int kNames[] = {TCP_CORK, TCP_NODELAY};

// Two bits for each name: whether the option is kept here, and its value.
constexpr unsigned Kept(int i) { return 1u << (2 * i); }
constexpr unsigned Value(int i) { return 2u << (2 * i); }

int IndexOf(int name) {
  return name == TCP_CORK ? 0 : name == TCP_NODELAY ? 1 : -1;
}

}  // namespace

bool Sock::KeepOption(int name, bool on) {
  const int i = IndexOf(name);
  if (i < 0) return false;
  Critical critical;
  tx_latch.lock();
  // The mode changes under both latches, so this holds until the bits are set.
  const bool mine = mode() == Mode::kEngine;
  if (mine) {
    if (name == TCP_CORK && (kept_options_ & Kept(i)) == 0) {
      // What was corked before the stream came here flows now.
      const int saved = errno;
      const int off = 0;
      ::syscall(SYS_setsockopt, fd(), IPPROTO_TCP, TCP_CORK, &off, sizeof off);
      errno = saved;
    }
    kept_options_ = static_cast<std::uint8_t>((kept_options_ & ~Value(i)) |
                                              Kept(i) | (on ? Value(i) : 0u));
  }
  tx_latch.unlock();
  return mine;
}

bool Sock::KeptOption(int name, int* value) {
  const int i = IndexOf(name);
  if (i < 0) return false;
  Critical critical;
  tx_latch.lock();
  const unsigned kept = kept_options_;
  tx_latch.unlock();
  *value = (kept & Value(i)) != 0 ? 1 : 0;
  return (kept & Kept(i)) != 0;
}

void Sock::TakeOptions() {
  const int saved = errno;
  for (int i = 0; i < 2; ++i) {
    const int flowing = kNames[i] == TCP_NODELAY ? 1 : 0;
    int value = flowing;
    socklen_t size = sizeof value;
    ::syscall(SYS_getsockopt, fd(), IPPROTO_TCP, kNames[i], &value, &size);
    if ((value != 0) == (flowing != 0)) continue;
    ::syscall(SYS_setsockopt, fd(), IPPROTO_TCP, kNames[i], &flowing,
              sizeof flowing);
    kept_options_ = static_cast<std::uint8_t>(
        (kept_options_ & ~Value(i)) | Kept(i) | (value != 0 ? Value(i) : 0u));
  }
  errno = saved;
}

void Sock::BoundSends() {
  Critical critical;
  tx_latch.lock();
  BoundSendsLatched();
  // A thread that sleeps for room may have some now.
  if (lane_ != nullptr) lane_->WakeLocal();
  tx_latch.unlock();
}

// What TCP would take of a program that has set its SO_SNDBUF: that value,
// which the kernel reports doubled, and what the peer's buffer has room for.
// Without SO_SNDBUF the kernel's buffer grows as needed, and so a lane's ring
// is no more.
void Sock::BoundSendsLatched() {
  if (lane_ == nullptr || !lane_is_shm_) return;
  const int saved = errno;
  constexpr int kBufLock = 72;    // SO_BUF_LOCK; since Linux 5.14
  constexpr int kSendLocked = 1;  // SOCK_SNDBUF_LOCK
  int locked = 0;
  int bytes = 0;
  socklen_t size = sizeof locked;
  tcp_info info{};
  if (::syscall(SYS_getsockopt, fd(), SOL_SOCKET, kBufLock, &locked, &size) ==
          0 &&
      (locked & kSendLocked) != 0 && (size = sizeof bytes) != 0 &&
      ::syscall(SYS_getsockopt, fd(), SOL_SOCKET, SO_SNDBUF, &bytes, &size) ==
          0 &&
      AskTcpInfo(fd(), &info) >=
          offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd) {
    lane_->BoundUnread(static_cast<std::uint64_t>(bytes) + info.tcpi_snd_wnd);
  }
  errno = saved;
}

void Sock::PushOptions() {
  if (kept_options_ == 0) return;
  const int saved = errno;
  for (int i = 0; i < 2; ++i) {
    if ((kept_options_ & Kept(i)) == 0) continue;
    const int value = (kept_options_ & Value(i)) != 0 ? 1 : 0;
    ::syscall(SYS_setsockopt, fd(), IPPROTO_TCP, kNames[i], &value,
              sizeof value);
  }
  kept_options_ = 0;
  errno = saved;
}

}  // namespace rcsock::posix
