// read, recv and their families.

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/direct.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/hooks_data.h"
#include "lib/posix/lifecycle/passing.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/sys/wait_time.h"

namespace rcsock::posix::hook {
namespace {

// Returns whether a receive may go the short way: the entry has the mark of a
// stream on a lane.
bool QuickRecvs(std::uintptr_t entry, const void* to, size_t length) {
  return (entry & kLaneMark) != 0 && static_cast<ssize_t>(length) > 0 &&
         !Null(to);
}
// Whether it may, for another stream.
bool QuickRecvs(const Sock* sock, const void* to, size_t length) {
  return static_cast<ssize_t>(length) > 0 && sock->mode() == Mode::kEngine &&
         !Null(to);
}

// Flags that only TCP needs to know.  MSG_PEEK moves nothing, so it is not
// among them.
constexpr int kPlainRecv = MSG_DONTWAIT | MSG_WAITALL;

[[gnu::noinline]] ssize_t LongRead(int fd, void* to, size_t length,
                                   Sock* sock) {
  const iovec iov{to, length};
  return sock->Recv(fd, &iov, 1, length, 0,
                    [&] { return direct::read(fd, to, length); });
}

[[gnu::noinline]] ssize_t LongRecv(int fd, void* to, size_t length, int flags,
                                   Sock* sock) {
  length = Capped(length);
  const iovec iov{to, length};
  if (__builtin_expect((flags & MSG_ERRQUEUE) != 0, 0)) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(&iov);
    message.msg_iovlen = 1;
    return sock->zero_copy().RecvErrors(fd, &message, flags);
  }
  return sock->Recv(fd, &iov, 1, length, flags,
                    [&] { return direct::recv(fd, to, length, flags); });
}

[[gnu::noinline, gnu::hot]] ssize_t RealRead(int fd, void* to, size_t length) {
  return direct::read(fd, to, length);
}

[[gnu::noinline, gnu::hot]] ssize_t RealRecv(int fd, void* to, size_t length,
                                             int flags) {
  return direct::recv(fd, to, length, flags);
}

[[gnu::noinline, gnu::hot]] ssize_t KernelRead(int fd, void* to, size_t length,
                                               Sock* sock) {
  return Route(sock).Received(direct::read(fd, to, length));
}

[[gnu::noinline, gnu::hot]] ssize_t KernelRecv(int fd, void* to, size_t length,
                                               int flags, Sock* sock) {
  return Route(sock).Received(direct::recv(fd, to, length, flags));
}

[[gnu::noinline, gnu::hot]] ssize_t PlainRead(int fd, void* to, size_t length,
                                              Sock* sock) {
  {
    Sock::InKernel in(sock);
    if (in.May(fd, Mode::kPlain)) [[likely]]
      return in.Received(direct::read(fd, to, length));
  }
  return LongRead(fd, to, length, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t PlainRecv(int fd, void* to, size_t length,
                                              int flags, Sock* sock) {
  {
    Sock::InKernel in(sock);
    if (in.May(fd, Mode::kPlain)) [[likely]]
      return in.Received(direct::recv(fd, to, length, flags));
  }
  return LongRecv(fd, to, length, flags, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t LaneRead(
    int fd, void* to, size_t length, std::uintptr_t entry,
    const std::atomic<std::uintptr_t>* at) {
  Sock* const sock = LaneSock(entry);
  if (const ssize_t n = sock->QuickRecv(Stands(at, entry), to, length, 0);
      n != 0) [[likely]]
    return n;
  return LongRead(fd, to, length, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t LaneRecv(
    int fd, void* to, size_t length, int flags, std::uintptr_t entry,
    const std::atomic<std::uintptr_t>* at) {
  Sock* const sock = LaneSock(entry);
  if (const ssize_t n = sock->QuickRecv(Stands(at, entry), to, length, flags);
      n != 0) [[likely]]
    return n;
  return LongRecv(fd, to, length, flags, sock);
}

// For a number whose entry has no kLaneMark, such as a copy of the stream's
// number.
[[gnu::noinline]] ssize_t UnmarkedRead(int fd, void* to, size_t length,
                                       Sock* sock) {
  const ssize_t n = sock->QuickRecv(StillAt(fd, sock), to, length, 0);
  return n != 0 ? n : LongRead(fd, to, length, sock);
}

[[gnu::noinline]] ssize_t UnmarkedRecv(int fd, void* to, size_t length,
                                       int flags, Sock* sock) {
  const ssize_t n = sock->QuickRecv(StillAt(fd, sock), to, length, flags);
  return n != 0 ? n : LongRecv(fd, to, length, flags, sock);
}

// The kernel has just filled in the message.  Descriptors may have come with
// it.
void LookForPassed(int fd, const msghdr* message, int flags) {
  BeforeLooking();
  std::size_t length = 0;
  if (__builtin_expect(base::TryLoad(&message->msg_controllen, &length) &&
                           length != 0 && !base::tls_internal,
                       0)) {
    AfterReceiving(fd, message, flags);
  }
}

}  // namespace

[[gnu::hot]] ssize_t read(int fd, void* to, size_t length) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickRecvs(entry, to, length))
    return LaneRead(fd, to, length, entry, &fd_table[fd]);
  Sock* sock = SockIn(entry, fd);
  // The kernel's read of no bytes looks at nothing; its recv of no bytes does
  // look.  The kernel refuses an invalid length.
  if (sock == nullptr || static_cast<ssize_t>(length) <= 0)
    return RealRead(fd, to, length);
  const LaneState::Call whose = Route(sock).WhoseCall();
  if (whose == LaneState::Call::kKernels)
    return KernelRead(fd, to, length, sock);
  if (whose == LaneState::Call::kPlain) return PlainRead(fd, to, length, sock);
  return QuickRecvs(sock, to, length) ? UnmarkedRead(fd, to, length, sock)
                                      : LongRead(fd, to, length, sock);
}

[[gnu::hot]] ssize_t recv(int fd, void* to, size_t length, int flags) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickRecvs(entry, to, length) && (flags & ~MSG_DONTWAIT) == 0)
    return LaneRecv(fd, to, length, flags, entry, &fd_table[fd]);
  Sock* sock = SockIn(entry, fd);
  if (sock == nullptr) return RealRecv(fd, to, length, flags);
  if ((flags & ~kPlainRecv) == 0) {
    const LaneState::Call whose = Route(sock).WhoseCall();
    if (whose == LaneState::Call::kKernels) {
      return KernelRecv(fd, to, length, flags, sock);
    }
    if (whose == LaneState::Call::kPlain) {
      return PlainRecv(fd, to, length, flags, sock);
    }
  }
  return (flags & ~MSG_DONTWAIT) == 0 && QuickRecvs(sock, to, length)
             ? UnmarkedRecv(fd, to, length, flags, sock)
             : LongRecv(fd, to, length, flags, sock);
}

[[gnu::hot]] ssize_t recvfrom(int fd, void* to, size_t length, int flags,
                              sockaddr* address, socklen_t* address_length) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) {
    return real::recvfrom(fd, to, length, flags, address, address_length);
  }
  if (address == nullptr && (flags & ~MSG_DONTWAIT) == 0 &&
      QuickRecvs(sock, to, length)) {
    return UnmarkedRecv(fd, to, length, flags, sock);
  }
  if (__builtin_expect((flags & MSG_ERRQUEUE) != 0, 0)) {
    const ssize_t n = recv(fd, to, length, flags);
    return n >= 0 && address != nullptr && TellNoName(address_length) != 0 ? -1
                                                                           : n;
  }
  length = Capped(length);
  const iovec iov{to, length};
  bool raw = false;
  const ssize_t n = sock->Recv(fd, &iov, 1, length, flags, [&] {
    raw = true;
    return real::recvfrom(fd, to, length, flags, address, address_length);
  });
  return n >= 0 && address != nullptr && !raw && TellNoName(address_length) != 0
             ? -1
             : n;
}

[[gnu::hot]] ssize_t readv(int fd, const iovec* iov, int count) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) return direct::readv(fd, iov, count);
  std::size_t total = 0;
  if (!Total(iov, count, &total) || total == 0) {
    return direct::readv(fd, iov, count);
  }
  if (total > kMostMoved) [[unlikely]] {
    return WithCut(iov, count, [&](const iovec* cut, int pieces) {
      return hook::readv(fd, cut, pieces);
    });
  }
  return sock->Recv(fd, iov, count, total, 0,
                    [&] { return direct::readv(fd, iov, count); });
}

[[gnu::hot]] ssize_t recvmsg(int fd, msghdr* message, int flags) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) {
    const ssize_t n = direct::recvmsg(fd, message, flags);
    if (n >= 0) LookForPassed(fd, message, flags);
    return n;
  }
  if (__builtin_expect((flags & MSG_ERRQUEUE) != 0, 0) && !Null(message) &&
      base::Readable(message, sizeof *message)) {
    return sock->zero_copy().RecvErrors(fd, message, flags);
  }
  std::size_t total = 0;
  void* name;
  if (Null(message) || !Total(message, &total) || (flags & kCompat) != 0 ||
      !base::TryLoad(&message->msg_name, &name) ||
      (name != nullptr && static_cast<int>(message->msg_namelen) < 0)) {
    return direct::recvmsg(fd, message, flags);
  }
  if (total > kMostMoved) [[unlikely]] {
    return WithCut(message->msg_iov, static_cast<int>(message->msg_iovlen),
                   [&](iovec* cut, int pieces) {
                     msghdr told = *message;
                     told.msg_iov = cut;
                     told.msg_iovlen = static_cast<std::size_t>(pieces);
                     const ssize_t n = hook::recvmsg(fd, &told, flags);
                     message->msg_namelen = told.msg_namelen;
                     message->msg_controllen = told.msg_controllen;
                     message->msg_flags = told.msg_flags;
                     return n;
                   });
  }
  // A lane cannot say when bytes came.
  if (sock->ancillary().Tells(Ancillary::kTime) && !Route(sock).Kernels())
      [[unlikely]] {
    sock->way_back().Pin(base::Reason::kPinnedOption);
  }
  bool raw = false;
  const ssize_t n =
      sock->Recv(fd, message->msg_iov, static_cast<int>(message->msg_iovlen),
                 total, flags, [&] {
                   raw = true;
                   return direct::recvmsg(fd, message, flags);
                 });
  if (n >= 0 && !raw) {
    // As in the kernel, what has come is lost.
    if ((name != nullptr &&
         !base::TryStore(&message->msg_namelen, socklen_t{0})) ||
        !base::TryStore(&message->msg_flags, flags & MSG_CMSG_CLOEXEC)) {
      return Faulted(0);
    }
    if (sock->ancillary().TellsAny()) [[unlikely]] {
      TellBeside(sock, message, n);
    } else if (!base::TryStore(&message->msg_controllen, std::size_t{0})) {
      return Faulted(0);
    }
  }
  return n;
}

int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags,
             timespec* timeout) {
  Sock* sock = LookupSock(fd);
  // The kernel refuses an invalid time before it looks at the socket.
  timespec limit;
  if (sock == nullptr || Null(messages) || Astray(timeout) ||
      (timeout != nullptr &&
       (!base::TryGet(&limit, timeout, sizeof limit) || !Valid(&limit)))) {
    const int got = real::recvmmsg(fd, messages, count, flags, timeout);
    for (int i = 0; i < got; ++i) {
      LookForPassed(fd, &messages[i].msg_hdr, flags);
    }
    return got;
  }
  constexpr std::int64_t kNever = INT64_MAX / 2;
  const auto now = [] { return static_cast<std::int64_t>(base::NowNs()); };
  const std::int64_t end =
      timeout == nullptr || limit.tv_sec > 1'000'000'000
          ? kNever
          : now() + limit.tv_sec * 1'000'000'000 + limit.tv_nsec;
  const std::uint32_t signals = tls_signals.any;
  unsigned got = 0;
  while (got < count) {
    int one = flags & ~MSG_WAITFORONE;
    if (got > 0 && (flags & MSG_WAITFORONE) != 0) one |= MSG_DONTWAIT;
    if (!base::Readable(&messages[got], sizeof *messages)) return Faulted(got);
    constexpr int kSleepless = MSG_DONTWAIT | MSG_PEEK | MSG_OOB | MSG_ERRQUEUE;
    if (got > 0 && (one & kSleepless) == 0 && !GoesOn(fd, POLLIN, signals)) {
      return static_cast<int>(got);
    }
    const ssize_t n = hook::recvmsg(fd, &messages[got].msg_hdr, one);
    if (n < 0) {
      if (got > 0) {
        if (const SockAt at(fd); at) at->KeepError(fd, errno);
        return static_cast<int>(got);
      }
      return -1;
    }
    if (!base::TryStore(&messages[got].msg_len, static_cast<unsigned>(n))) {
      return Faulted(got);
    }
    ++got;
    // As in the kernel, only between messages.
    if (timeout != nullptr && end != kNever) {
      const std::int64_t at = now();
      const std::int64_t left = end > at ? end - at : 0;
      limit = {left / 1'000'000'000, left % 1'000'000'000};
      if (!base::TryPut(timeout, &limit, sizeof limit)) return Faulted(0);
      if (left == 0) break;
    }
    if ((messages[got - 1].msg_hdr.msg_flags & MSG_OOB) != 0) break;
  }
  return static_cast<int>(got);
}

ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr || offset != -1) {
    return real::preadv2(fd, iov, count, offset, flags);
  }
  std::size_t total = 0;
  if (!Total(iov, count, &total) || total == 0) {
    return real::preadv2(fd, iov, count, offset, flags);
  }
  if (total > kMostMoved) [[unlikely]] {
    return WithCut(iov, count, [&](const iovec* cut, int pieces) {
      return hook::preadv2(fd, cut, pieces, offset, flags);
    });
  }
  if ((flags & ~kVectorFlags) != 0)
    sock->way_back().Pin(base::Reason::kPinnedOption);
  return sock->Recv(
      fd, iov, count, total, (flags & RWF_NOWAIT) ? MSG_DONTWAIT : 0,
      [&] { return real::preadv2(fd, iov, count, offset, flags); });
}

ssize_t preadv64v2(int fd, const iovec* iov, int count, off64_t offset,
                   int flags) {
  return hook::preadv2(fd, iov, count, offset, flags);
}

// The checked calls of FORTIFY.  On an overflow glibc ends the program, so
// glibc decides that.
ssize_t __read_chk(int fd, void* to, size_t length, size_t size) {
  if (length > size || LookupSock(fd) == nullptr) {
    return real::__read_chk(fd, to, length, size);
  }
  return read(fd, to, length);
}

ssize_t __recv_chk(int fd, void* to, size_t length, size_t size, int flags) {
  if (length > size || LookupSock(fd) == nullptr) {
    return real::__recv_chk(fd, to, length, size, flags);
  }
  return recv(fd, to, length, flags);
}

ssize_t __recvfrom_chk(int fd, void* to, size_t length, size_t size, int flags,
                       sockaddr* address, socklen_t* address_length) {
  if (length > size || LookupSock(fd) == nullptr) {
    return real::__recvfrom_chk(fd, to, length, size, flags, address,
                                address_length);
  }
  return hook::recvfrom(fd, to, length, flags, address, address_length);
}

}  // namespace rcsock::posix::hook
