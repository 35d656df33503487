// read, write and their families.

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/direct.h"
#include "lib/base/internal.h"
#include "lib/base/no_cancel.h"
#include "lib/posix/hooks.h"
#include "lib/posix/passing.h"
#include "lib/posix/sock_quick.h"
#include "lib/posix/table.h"
#include "lib/posix/zero_copy.h"

namespace rcsock::posix::hook {
namespace {

// False where the kernel refuses the vector, and says why better than we could.
bool Total(const iovec* iov, long count, std::size_t* total) {
  if (count < 0 || count > IOV_MAX || (count > 0 && Null(iov))) return false;
  std::size_t sum = 0;
  for (long i = 0; i < count; ++i) {
    if (iov[i].iov_len > static_cast<std::size_t>(SSIZE_MAX) - sum) {
      return false;
    }
    sum += iov[i].iov_len;
  }
  *total = sum;
  return true;
}

// A length that read, write and sendfile refuse before they look at the socket.
bool Negative(size_t length) { return static_cast<ssize_t>(length) < 0; }

// What send and recv, which refuse no length, take at most (MAX_RW_COUNT).
constexpr std::size_t kMostMoved = 0x7ffff000;
size_t Capped(size_t length) {
  return length < kMostMoved ? length : kMostMoved;
}

bool Engine(Sock* sock) { return sock->mode() == Mode::kEngine; }

// What may go the short way: of a stream that is noted to be on a lane;
bool QuickSends(std::uintptr_t entry, const void* from, size_t length) {
  return (entry & kLaneMark) != 0 && length - 1 < Sock::kQuickMost &&
         !Null(from);
}
bool QuickRecvs(std::uintptr_t entry, const void* to, size_t length) {
  return (entry & kLaneMark) != 0 && static_cast<ssize_t>(length) > 0 &&
         !Null(to);
}
Sock* LaneSock(std::uintptr_t entry) {
  return static_cast<Sock*>(FileIn(entry));
}
// and of another.
bool QuickSends(const Sock* sock, const void* from, size_t length) {
  return length - 1 < Sock::kQuickMost && sock->mode() == Mode::kEngine &&
         !Null(from);
}
bool QuickRecvs(const Sock* sock, const void* to, size_t length) {
  return static_cast<ssize_t>(length) > 0 && sock->mode() == Mode::kEngine &&
         !Null(to);
}

// What TCP is told and no lane: MSG_PEEK among others moves nothing.
constexpr int kPlainSend = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE;
constexpr int kPlainRecv = MSG_DONTWAIT | MSG_WAITALL;

// read, recv, write and send take the short way of a stream on a lane, or that
// of one on TCP: few instructions and fewer cache lines,
// since after a sleep in the kernel each is a miss.  They are "hot": the
// compiler puts such functions together (.text.hot).  Each of the ways that a
// hook may go on is a function that it ends with (Real..., Kernel..., Plain...,
// Lane..., Long...), so that it saves no registers itself.
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
    return sock->RecvErrors(fd, &message, flags);
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
  return sock->Received(direct::read(fd, to, length));
}

[[gnu::noinline, gnu::hot]] ssize_t KernelRecv(int fd, void* to, size_t length,
                                               int flags, Sock* sock) {
  return sock->Received(direct::recv(fd, to, length, flags));
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

[[gnu::noinline, gnu::hot]] ssize_t LaneRead(int fd, void* to, size_t length,
                                             Sock* sock) {
  if (const ssize_t n = sock->QuickRecv(to, length, 0); n != 0) [[likely]]
    return n;
  return LongRead(fd, to, length, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t LaneRecv(int fd, void* to, size_t length,
                                             int flags, Sock* sock) {
  if (const ssize_t n = sock->QuickRecv(to, length, flags); n != 0) [[likely]]
    return n;
  return LongRecv(fd, to, length, flags, sock);
}

[[gnu::noinline]] ssize_t LongWrite(int fd, const void* from, size_t length,
                                    Sock* sock) {
  if (Negative(length)) return real::write(fd, from, length);
  const iovec iov{const_cast<void*>(from), length};
  return sock->Send(fd, &iov, 1, length, 0,
                    [&] { return direct::write(fd, from, length); });
}

[[gnu::noinline, gnu::hot]] ssize_t RealWrite(int fd, const void* from,
                                              size_t length) {
  return direct::write(fd, from, length);
}

[[gnu::noinline, gnu::hot]] ssize_t KernelWrite(int fd, const void* from,
                                                size_t length, Sock* sock) {
  return sock->Sent(direct::write(fd, from, length));
}

[[gnu::noinline, gnu::hot]] ssize_t PlainWrite(int fd, const void* from,
                                               size_t length, Sock* sock) {
  {
    Sock::InKernel in(sock);
    if (in.May(fd, Mode::kPlain)) [[likely]]
      return in.Sent(direct::write(fd, from, length));
  }
  return LongWrite(fd, from, length, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t LaneWrite(int fd, const void* from,
                                              size_t length, Sock* sock) {
  if (const ssize_t n = sock->QuickSend(from, length); n != 0) [[likely]]
    return n;
  return LongWrite(fd, from, length, sock);
}

}  // namespace

[[gnu::hot]] ssize_t read(int fd, void* to, size_t length) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickRecvs(entry, to, length))
    return LaneRead(fd, to, length, LaneSock(entry));
  Sock* sock = SockIn(entry, fd);
  // (The kernel's read of nothing looks at nothing; recv of nothing does.  What
  // is no length it refuses.)
  if (sock == nullptr || static_cast<ssize_t>(length) <= 0)
    return RealRead(fd, to, length);
  if (!Engine(sock)) {
    if (sock->Kernels()) return KernelRead(fd, to, length, sock);
    if (sock->OnTcp()) return PlainRead(fd, to, length, sock);
  }
  return QuickRecvs(sock, to, length) ? LaneRead(fd, to, length, sock)
                                      : LongRead(fd, to, length, sock);
}

[[gnu::hot]] ssize_t recv(int fd, void* to, size_t length, int flags) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickRecvs(entry, to, length) && (flags & ~MSG_DONTWAIT) == 0)
    return LaneRecv(fd, to, length, flags, LaneSock(entry));
  Sock* sock = SockIn(entry, fd);
  if (sock == nullptr) return RealRecv(fd, to, length, flags);
  if ((flags & ~kPlainRecv) == 0 && !Engine(sock)) {
    if (sock->Kernels()) return KernelRecv(fd, to, length, flags, sock);
    if (sock->OnTcp()) return PlainRecv(fd, to, length, flags, sock);
  }
  return (flags & ~MSG_DONTWAIT) == 0 && QuickRecvs(sock, to, length)
             ? LaneRecv(fd, to, length, flags, sock)
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
    return LaneRecv(fd, to, length, flags, sock);
  }
  if (__builtin_expect((flags & MSG_ERRQUEUE) != 0, 0)) {
    const ssize_t n = recv(fd, to, length, flags);
    if (n >= 0 && address != nullptr && address_length != nullptr) {
      *address_length = 0;
    }
    return n;
  }
  length = Capped(length);
  const iovec iov{to, length};
  bool raw = false;
  const ssize_t n = sock->Recv(fd, &iov, 1, length, flags, [&] {
    raw = true;
    return real::recvfrom(fd, to, length, flags, address, address_length);
  });
  if (n >= 0 && address != nullptr && address_length != nullptr && !raw) {
    *address_length = 0;  // as TCP
  }
  return n;
}

[[gnu::hot]] ssize_t readv(int fd, const iovec* iov, int count) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) return direct::readv(fd, iov, count);
  std::size_t total = 0;
  if (!Total(iov, count, &total) || total == 0) {
    return direct::readv(fd, iov, count);
  }
  return sock->Recv(fd, iov, count, total, 0,
                    [&] { return direct::readv(fd, iov, count); });
}

[[gnu::hot]] ssize_t recvmsg(int fd, msghdr* message, int flags) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) return direct::recvmsg(fd, message, flags);
  if (__builtin_expect((flags & MSG_ERRQUEUE) != 0, 0) && !Null(message)) {
    return sock->RecvErrors(fd, message, flags);
  }
  std::size_t total = 0;
  if (Null(message) || !Total(message->msg_iov,
                              static_cast<long>(message->msg_iovlen), &total)) {
    return direct::recvmsg(fd, message, flags);
  }
  sock->BeforeRecvMsg();
  bool raw = false;
  const ssize_t n =
      sock->Recv(fd, message->msg_iov, static_cast<int>(message->msg_iovlen),
                 total, flags, [&] {
                   raw = true;
                   return direct::recvmsg(fd, message, flags);
                 });
  if (n >= 0 && !raw) {
    if (message->msg_name != nullptr) message->msg_namelen = 0;
    message->msg_flags = flags & MSG_CMSG_CLOEXEC;
    if (sock->TellsAny()) [[unlikely]] {
      sock->TellBeside(message, n);
    } else {
      message->msg_controllen = 0;
    }
  }
  return n;
}

int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags,
             timespec* timeout) {
  Sock* sock = LookupSock(fd);
  // (What is no time the kernel refuses before it looks at the socket.)
  if (sock == nullptr || Null(messages) || Astray(timeout) ||
      (timeout != nullptr && !Valid(timeout))) {
    return real::recvmmsg(fd, messages, count, flags, timeout);
  }
  constexpr std::int64_t kNever = INT64_MAX / 2;
  const auto now = [] { return static_cast<std::int64_t>(base::NowNs()); };
  const std::int64_t end =
      timeout == nullptr || timeout->tv_sec > 1'000'000'000
          ? kNever
          : now() + timeout->tv_sec * 1'000'000'000 + timeout->tv_nsec;
  unsigned got = 0;
  while (got < count) {
    int one = flags & ~MSG_WAITFORONE;
    if (got > 0 && (flags & MSG_WAITFORONE) != 0) one |= MSG_DONTWAIT;
    const ssize_t n = hook::recvmsg(fd, &messages[got].msg_hdr, one);
    if (n < 0) {
      return got > 0 ? static_cast<int>(got) : -1;
    }
    messages[got].msg_len = static_cast<unsigned>(n);
    ++got;
    // As the kernel: only between messages.
    if (timeout != nullptr && end != kNever) {
      const std::int64_t at = now();
      const std::int64_t left = end > at ? end - at : 0;
      timeout->tv_sec = left / 1'000'000'000;
      timeout->tv_nsec = left % 1'000'000'000;
      if (left == 0) break;
    }
    if ((messages[got - 1].msg_hdr.msg_flags & MSG_OOB) != 0) break;
  }
  return static_cast<int>(got);
}

[[gnu::hot]] ssize_t write(int fd, const void* from, size_t length) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickSends(entry, from, length))
    return LaneWrite(fd, from, length, LaneSock(entry));
  Sock* sock = SockIn(entry, fd);
  if (sock == nullptr) return RealWrite(fd, from, length);
  if (!Engine(sock)) {
    if (sock->Kernels()) return KernelWrite(fd, from, length, sock);
    if (sock->OnTcp()) return PlainWrite(fd, from, length, sock);
  }
  return QuickSends(sock, from, length) ? LaneWrite(fd, from, length, sock)
                                        : LongWrite(fd, from, length, sock);
}

// With the flags that a lane does not know.
template <class Raw>
static ssize_t SendFlagged(Sock* sock, int fd, const iovec* iov, int count,
                           std::size_t total, int flags, Raw&& raw) {
  if (__builtin_expect((flags & (MSG_OOB | MSG_ZEROCOPY)) == 0, 1)) {
    return sock->Send(fd, iov, count, total, flags, raw);
  }
  if (flags & MSG_OOB) sock->Pin(base::Reason::kPinnedOption);
  ZeroCopy* const zero_copy =
      flags & MSG_ZEROCOPY ? sock->ForZeroCopy() : nullptr;
  bool by_kernel = false;
  // (What TCP takes of a call of which a lane has taken some is copied too.)
  const ssize_t n =
      sock->Send(fd, iov, count, total, flags & ~MSG_ZEROCOPY, [&] {
        by_kernel = true;
        const ssize_t taken = raw();
        // Here, where no lane can come in between.
        if (taken > 0 && zero_copy != nullptr) zero_copy->ByKernel();
        return taken;
      });
  if (n > 0 && !by_kernel && zero_copy != nullptr) sock->CopiedInstead();
  return n;
}

[[gnu::noinline]] static ssize_t LongSend(int fd, const void* from,
                                          size_t length, int flags,
                                          Sock* sock) {
  length = Capped(length);
  const iovec iov{const_cast<void*>(from), length};
  return SendFlagged(sock, fd, &iov, 1, length, flags,
                     [&] { return direct::send(fd, from, length, flags); });
}

[[gnu::noinline, gnu::hot]] static ssize_t RealSend(int fd, const void* from,
                                                    size_t length, int flags) {
  return direct::send(fd, from, length, flags);
}

[[gnu::noinline, gnu::hot]] static ssize_t KernelSend(int fd, const void* from,
                                                      size_t length, int flags,
                                                      Sock* sock) {
  return sock->Sent(direct::send(fd, from, length, flags));
}

[[gnu::noinline, gnu::hot]] static ssize_t PlainSend(int fd, const void* from,
                                                     size_t length, int flags,
                                                     Sock* sock) {
  {
    Sock::InKernel in(sock);
    if (in.May(fd, Mode::kPlain)) [[likely]]
      return in.Sent(direct::send(fd, from, length, flags));
  }
  return LongSend(fd, from, length, flags, sock);
}

[[gnu::noinline, gnu::hot]] static ssize_t LaneSend(int fd, const void* from,
                                                    size_t length, int flags,
                                                    Sock* sock) {
  if (const ssize_t n = sock->QuickSend(from, length); n != 0) [[likely]]
    return n;
  return LongSend(fd, from, length, flags, sock);
}

[[gnu::hot]] ssize_t send(int fd, const void* from, size_t length, int flags) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickSends(entry, from, length) &&
      (flags & (MSG_OOB | MSG_ZEROCOPY)) == 0) {
    return LaneSend(fd, from, length, flags, LaneSock(entry));
  }
  Sock* sock = SockIn(entry, fd);
  if (sock == nullptr) return RealSend(fd, from, length, flags);
  if ((flags & ~kPlainSend) == 0 && !Engine(sock)) {
    if (sock->Kernels()) return KernelSend(fd, from, length, flags, sock);
    if (sock->OnTcp()) return PlainSend(fd, from, length, flags, sock);
  }
  return (flags & (MSG_OOB | MSG_ZEROCOPY)) == 0 &&
                 QuickSends(sock, from, length)
             ? LaneSend(fd, from, length, flags, sock)
             : LongSend(fd, from, length, flags, sock);
}

[[gnu::hot]] ssize_t sendto(int fd, const void* from, size_t length, int flags,
                            const sockaddr* address, socklen_t address_length) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) {
    return real::sendto(fd, from, length, flags, address, address_length);
  }
  length = Capped(length);
  const iovec iov{const_cast<void*>(from), length};
  return SendFlagged(sock, fd, &iov, 1, length, flags, [&] {
    return real::sendto(fd, from, length, flags, address, address_length);
  });
}

// The short way of a vector, as QuickSend: several pieces are put together here
// first if they are few bytes, which costs less than to take them one by one.
[[gnu::noinline, gnu::hot]] static ssize_t GatherSend(Sock* sock,
                                                      const iovec* iov,
                                                      int count, size_t total) {
  constexpr std::size_t kMost = 1024;
  if (count == 1) {
    return QuickSends(sock, iov->iov_base, total)
               ? sock->QuickSend(iov->iov_base, total)
               : 0;
  }
  if (total - 1 >= kMost || sock->source() != nullptr) return 0;
  char all[kMost];
  char* to = all;
  for (const iovec* end = iov + count; iov != end; ++iov) {
    if (iov->iov_len == 0) continue;
    // (A vector that another thread changes may be longer by now.)
    if (Null(iov->iov_base) ||
        iov->iov_len > static_cast<std::size_t>(all + kMost - to)) {
      return 0;
    }
    std::memcpy(to, iov->iov_base, iov->iov_len);
    to += iov->iov_len;
  }
  return sock->QuickSend(all, static_cast<std::size_t>(to - all));
}

[[gnu::hot]] ssize_t writev(int fd, const iovec* iov, int count) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) return direct::writev(fd, iov, count);
  std::size_t total = 0;
  // The kernel's writev of nothing does not ask the socket; its write does.
  if (!Total(iov, count, &total) || total == 0)
    return direct::writev(fd, iov, count);
  if (Engine(sock)) {
    if (const ssize_t n = GatherSend(sock, iov, count, total); n != 0) return n;
  }
  return sock->Send(fd, iov, count, total, 0,
                    [&] { return direct::writev(fd, iov, count); });
}

[[gnu::hot]] ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) {
    if (__builtin_expect(!Null(message) && message->msg_control != nullptr &&
                             !base::tls_internal,
                         0)) {
      BeforePassing(message);
    }
    return direct::sendmsg(fd, message, flags);
  }
  std::size_t total = 0;
  if (Null(message) || !Total(message->msg_iov,
                              static_cast<long>(message->msg_iovlen), &total)) {
    return direct::sendmsg(fd, message, flags);
  }
  const int count = static_cast<int>(message->msg_iovlen);
  if (total != 0 && (flags & (MSG_OOB | MSG_ZEROCOPY)) == 0 && Engine(sock)) {
    if (const ssize_t n = GatherSend(sock, message->msg_iov, count, total);
        n != 0) {
      return n;
    }
  }
  return SendFlagged(sock, fd, message->msg_iov, count, total, flags,
                     [&] { return direct::sendmsg(fd, message, flags); });
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (LookupSock(fd) == nullptr) {
    for (unsigned i = 0; i < count && !Null(messages); ++i) {
      if (messages[i].msg_hdr.msg_control != nullptr && !base::tls_internal) {
        BeforePassing(&messages[i].msg_hdr);
      }
    }
    return real::sendmmsg(fd, messages, count, flags);
  }
  if (Null(messages)) return real::sendmmsg(fd, messages, count, flags);
  const unsigned most = std::min<unsigned>(count, IOV_MAX);  // as the kernel's
  for (unsigned sent = 0; sent < most; ++sent) {
    const msghdr& message = messages[sent].msg_hdr;
    const ssize_t n = hook::sendmsg(fd, &message, flags);
    if (n < 0) return sent > 0 ? static_cast<int>(sent) : -1;
    messages[sent].msg_len = static_cast<unsigned>(n);
    std::size_t left = static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
      // After a message that went in part the next one would follow its part.
      if (message.msg_iov[i].iov_len > left) return static_cast<int>(sent) + 1;
      left -= message.msg_iov[i].iov_len;
    }
  }
  return static_cast<int>(most);
}

// What read() can read sendfile may not, and the errors differ: of a file that
// is no file of bytes with a size (of /proc, say) the kernel is asked, by a
// call that sends nothing.  `got`: what has been read of it, and is put back.
[[gnu::cold]] static bool RefusedBySendfile(int in, const off_t* offset,
                                            ssize_t got) {
  const int saved = errno;
  struct stat what {};
  if (::fstat(in, &what) != 0) return false;
  if (S_ISREG(what.st_mode) && what.st_size > 0) return false;
  if (offset == nullptr && got > 0) ::lseek(in, -got, SEEK_CUR);
  off_t at = offset != nullptr ? *offset : ::lseek(in, 0, SEEK_CUR);
  const long nowhere =
      at < 0 && offset == nullptr
          ? -1
          : ::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY | O_CLOEXEC);
  ssize_t n = 0;
  if (nowhere >= 0) {
    n = real::sendfile(static_cast<int>(nowhere), in, &at, 1);
    const int error = errno;
    ::syscall(SYS_close, nowhere);
    errno = error;
  }
  if (n < 0) return true;
  if (offset == nullptr && got > 0) ::lseek(in, got, SEEK_CUR);
  errno = saved;
  return false;
}
namespace {

// What sendfile copies by.  The stack of a thread or a coroutine may be no
// larger than 16 KiB, so few threads at a time have one of these; the others,
// and those that come after a handler has jumped out of sendfile, a small piece
// of their stack.
class SendBuffer {
 public:
  static constexpr std::size_t kLarge = 16384;
  static constexpr std::size_t kSmall = 2048;
  SendBuffer() {
    unsigned taken = taken_.load(std::memory_order_relaxed);
    while (taken != kAll) {
      const unsigned mine = ~taken & (taken + 1);  // the lowest that is free
      if (taken_.compare_exchange_weak(taken, taken | mine,
                                       std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        mine_ = mine;
        return;
      }
    }
  }
  ~SendBuffer() {
    if (mine_ != 0) taken_.fetch_and(~mine_, std::memory_order_release);
  }
  SendBuffer(const SendBuffer&) = delete;
  SendBuffer& operator=(const SendBuffer&) = delete;
  char* at() const {
    return mine_ == 0 ? nullptr : buffers_[__builtin_ctz(mine_)];
  }

 private:
  static constexpr unsigned kCount = 8;
  static constexpr unsigned kAll = (1u << kCount) - 1;
  static inline constinit std::atomic<unsigned> taken_{0};
  alignas(64) static inline char buffers_[kCount][kLarge];
  unsigned mine_ = 0;
};

}  // namespace

ssize_t sendfile(int out, int in, off_t* offset, size_t count) {
  Sock* sock = LookupSock(out);
  if (sock == nullptr || count == 0 || Negative(count) || Astray(offset)) {
    return real::sendfile(out, in, offset, count);
  }
  // A stream that may leave TCP yet is not left in the kernel until all of a
  // large file is sent: it could not be adopted, and would never leave.  So it
  // is sent by parts, and by `send`, which may wait for it, where a lane is
  // about to come.
  constexpr std::size_t kPart = 64 << 10;
  count = Capped(count);
  const std::uint32_t signals = tls_signals.interrupts;
  std::size_t done = 0;
  while (!Engine(sock) && !sock->AwaitsLane()) {
    const std::size_t left = count - done;
    const std::size_t part = sock->MayLeaveTcp() && left > kPart ? kPart : left;
    bool raw = false;
    const ssize_t n = sock->Send(out, nullptr, 0, 0, 0, [&] {
      raw = true;
      return real::sendfile(out, in, offset, part);
    });
    if (!raw) continue;  // it was promoted a moment ago
    if (n < 0) return done > 0 ? static_cast<ssize_t>(done) : n;
    done += static_cast<std::size_t>(n);
    // (As in the kernel, a handler that has run ends a call that has sent.)
    if (static_cast<std::size_t>(n) < part || done == count ||
        tls_signals.interrupts != signals) {
      return static_cast<ssize_t>(done);
    }
  }
  // What has no place to go back to is refused, as by the kernel; where there
  // is an offset, pread refuses it.
  if (offset == nullptr) {
    struct stat what {};
    if (::fstat(in, &what) != 0) return -1;
    if (S_ISFIFO(what.st_mode) || S_ISSOCK(what.st_mode)) {
      errno = EINVAL;
      return -1;
    }
  }
  // By way of a buffer: the page cache can't be mapped into a ring.  What the
  // stream did not take is read again next time: only the offset counts.
  // No place for cancellation, and not to be unwound: sendfile throws nothing.
  const base::NoCancel no_cancel;
  char small[SendBuffer::kSmall];
  const SendBuffer large;
  char* const piece = large.at() != nullptr ? large.at() : small;
  const std::size_t most =
      large.at() != nullptr ? SendBuffer::kLarge : sizeof small;
  while (done < count) {
    if (!Engine(sock) && !sock->AwaitsLane()) {
      // No lane has come: the kernel needs no buffer.
      const ssize_t rest = sendfile(out, in, offset, count - done);
      return rest > 0    ? static_cast<ssize_t>(done) + rest
             : done == 0 ? rest
                         : static_cast<ssize_t>(done);
    }
    const std::size_t want = count - done < most ? count - done : most;
    const ssize_t got = offset != nullptr ? ::pread(in, piece, want, *offset)
                                          : direct::read(in, piece, want);
    if (done == 0 && got < static_cast<ssize_t>(want) &&
        RefusedBySendfile(in, offset, got)) {
      return -1;
    }
    if (got <= 0) {
      if (got < 0 && done == 0) return -1;
      break;
    }
    const ssize_t sent = send(out, piece, static_cast<std::size_t>(got), 0);
    const int saved = errno;
    const ssize_t taken = sent > 0 ? sent : 0;
    if (offset != nullptr) {
      *offset += taken;
    } else if (taken < got) {
      ::lseek(in, taken - got, SEEK_CUR);
    }
    done += static_cast<std::size_t>(taken);
    if (sent == got && done < count && sock->SendsParts()) break;
    if (sent < got) {
      if (done == 0) {
        errno = saved;
        return -1;
      }
      break;
    }
  }
  return static_cast<ssize_t>(done);
}

ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) {
  static_assert(sizeof(off64_t) == sizeof(off_t));
  return sendfile(out, in, offset, count);
}

// From bytes that were read ahead and are shared: the kernel does not have
// them. 0: there are none (any more).
static ssize_t SpliceUnread(Sock* sock, int in, int out, size_t length,
                            unsigned flags) {
  std::size_t most = sock->UnreadBytes();
  char piece[4096];  // what a pipe with any room takes as one
  if (most > sizeof piece) most = sizeof piece;
  if (most > length) most = length;
  if (most == 0) return 0;
  pollfd room{out, POLLOUT, 0};
  if ((flags & SPLICE_F_NONBLOCK) != 0 && real::poll(&room, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  const ssize_t seen = hook::recv(in, piece, most, MSG_PEEK | MSG_DONTWAIT);
  if (seen <= 0) return seen;
  const ssize_t n = direct::write(out, piece, static_cast<std::size_t>(seen));
  if (n > 0) hook::recv(in, piece, static_cast<std::size_t>(n), MSG_DONTWAIT);
  return n;
}

ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset,
               size_t length, unsigned flags) {
  if (Sock* sock = LookupSock(in)) {
    sock->Pin(base::Reason::kPinnedSyscall);
    if (in_offset == nullptr && out_offset == nullptr) {
      const ssize_t n = SpliceUnread(sock, in, out, length, flags);
      if (n != 0) return n;
    }
  }
  if (Sock* sock = LookupSock(out)) sock->Pin(base::Reason::kPinnedSyscall);
  return real::splice(in, in_offset, out, out_offset, length, flags);
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
  return sock->Recv(
      fd, iov, count, total, (flags & RWF_NOWAIT) ? MSG_DONTWAIT : 0,
      [&] { return real::preadv2(fd, iov, count, offset, flags); });
}

ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr || offset != -1) {
    return real::pwritev2(fd, iov, count, offset, flags);
  }
  std::size_t total = 0;
  if (!Total(iov, count, &total) || total == 0) {
    return real::pwritev2(fd, iov, count, offset, flags);
  }
  return sock->Send(
      fd, iov, count, total, (flags & RWF_NOWAIT) ? MSG_DONTWAIT : 0,
      [&] { return real::pwritev2(fd, iov, count, offset, flags); });
}

ssize_t preadv64v2(int fd, const iovec* iov, int count, off64_t offset,
                   int flags) {
  return hook::preadv2(fd, iov, count, offset, flags);
}

ssize_t pwritev64v2(int fd, const iovec* iov, int count, off64_t offset,
                    int flags) {
  return hook::pwritev2(fd, iov, count, offset, flags);
}

// The checked calls of FORTIFY: glibc ends the program on an overflow, so it
// makes that judgement itself.
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
