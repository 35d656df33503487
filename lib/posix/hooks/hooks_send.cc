// write, send and their families.

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/direct.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/no_sigpipe.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/hooks_data.h"
#include "lib/posix/lifecycle/passing.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/socket/zero_copy.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::hook {
namespace {

// Returns whether a send may go the short way: the entry has the mark of a
// stream on a lane.
bool QuickSends(std::uintptr_t entry, const void* from, size_t length) {
  return (entry & kLaneMark) != 0 && length - 1 < Sock::kQuickMost &&
         !Null(from);
}
// Whether it may, for another stream.
bool QuickSends(const Sock* sock, const void* from, size_t length) {
  return length - 1 < Sock::kQuickMost && sock->mode() == Mode::kEngine &&
         !Null(from);
}

// Flags that only TCP needs to know.
constexpr int kPlainSend = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE;
// Flags that only the kernel can serve.  MSG_FASTOPEN makes a connection; if
// the socket is connected, the kernel reports it.  kNotQuick adds the flag that
// asks for a report of copies.
constexpr int kKernelSend = MSG_OOB | MSG_FASTOPEN;
constexpr int kNotQuick = kKernelSend | MSG_ZEROCOPY;

// Control data and names mean nothing to TCP.  The kernel still reads them, and
// refuses bad ones before it takes a byte.  So the kernel is asked by a call
// that sends nothing.  This holds for a stream on TCP, too, which may take its
// lane amid the call.
[[gnu::cold, gnu::noinline]] bool Refused(const Sock* sock, int fd,
                                          const msghdr* message, int flags) {
  const bool engine = Engine(sock);
  msghdr beside = *message;
  beside.msg_iov = nullptr;
  beside.msg_iovlen = 0;
  const int saved = errno;
  if (real::sendmsg(fd, &beside,
                    (flags & kCompat) | MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    switch (errno) {
      case EFAULT:
      case EINVAL:
      case ENOBUFS:
        return true;
      case EAGAIN:       // not connected yet
      case EINPROGRESS:  // no connection has begun
      case EPIPE:        // the call itself reports it, with a signal
        break;
      default:
        // An error of the connection.  The kernel reports it once.  A stream on
        // a lane may see the error in another way.
        if (!engine) return true;
        break;
    }
  }
  errno = saved;
  return false;
}

// Whether a send stays so long in the kernel that the stream could not be
// adopted meanwhile.  poll() reports a completion of MSG_ZEROCOPY until it is
// read, as it would an error, and so does not tell when there is room.
bool GoesByParts(Sock* sock, std::size_t length, int flags) {
  return length > SendGate::kPart && (flags & ~MSG_NOSIGNAL) == 0 &&
         sock->lane_state().MayLeaveTcp(LaneState::kWeak) && !Engine(sock) &&
         !sock->zero_copy().on() &&
         !sock->nonblock.load(std::memory_order_relaxed);
}

// Returns whether a vector goes by parts.  A vector of more pieces stays in one
// call, since each part has a few pieces.  So does a vector with a piece that
// the kernel refuses before it takes a byte.
bool GoesByParts(Sock* sock, const iovec* iov, int count, std::size_t total,
                 int flags) {
  constexpr int kMostPieces = 64;
  return count <= kMostPieces && GoesByParts(sock, total, flags) &&
         !Null(iov, count);
}

// `raw(part)` is the kernel's call for the first part.
template <class Raw>
ssize_t SendByParts(int fd, const iovec* iov, int count, std::size_t total,
                    int flags, Sock* sock, Raw&& raw) {
  const std::uint32_t life = sock->calls().Life();
  const std::uint32_t signals = tls_signals.any;
  IovRest part(iov, count);
  part.Limit(0, SendGate::kPart);
  const std::size_t length = part.total();
  const ssize_t n = sock->Send(fd, part.iov(), part.count(), length, flags,
                               [&] { return raw(part); });
  if (n < static_cast<ssize_t>(length)) return n;
  return sock->send_gate().SendParts(fd, iov, count, total, length, flags, life,
                                     signals, &GoesOn);
}

[[gnu::noinline]] ssize_t LongWrite(int fd, const void* from, size_t length,
                                    Sock* sock) {
  if (Negative(length)) return real::write(fd, from, length);
  length = Capped(length);
  const iovec iov{const_cast<void*>(from), length};
  if (GoesByParts(sock, length, 0)) {
    return SendByParts(fd, &iov, 1, length, 0, sock, [&](const IovRest& part) {
      return direct::write(fd, from, part.total());
    });
  }
  return sock->Send(fd, &iov, 1, length, 0,
                    [&] { return direct::write(fd, from, length); });
}

[[gnu::noinline, gnu::hot]] ssize_t RealWrite(int fd, const void* from,
                                              size_t length) {
  return direct::write(fd, from, length);
}

[[gnu::noinline, gnu::hot]] ssize_t KernelWrite(int fd, const void* from,
                                                size_t length, Sock* sock) {
  return Route(sock).Sent(direct::write(fd, from, length));
}

[[gnu::noinline, gnu::hot]] ssize_t PlainWrite(int fd, const void* from,
                                               size_t length, Sock* sock) {
  if (length <= SendGate::kPart) [[likely]] {
    Sock::InKernel in(sock);
    if (in.May(fd, Mode::kPlain)) [[likely]]
      return in.Sent(direct::write(fd, from, length));
  }
  return LongWrite(fd, from, length, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t LaneWrite(
    int fd, const void* from, size_t length, std::uintptr_t entry,
    const std::atomic<std::uintptr_t>* at) {
  Sock* const sock = LaneSock(entry);
  if (const ssize_t n = sock->QuickSend(Stands(at, entry), from, length);
      n != 0) [[likely]]
    return n;
  return LongWrite(fd, from, length, sock);
}

// For a number whose entry has no kLaneMark, such as a copy of the stream's
// number.
[[gnu::noinline]] ssize_t EngineWrite(int fd, const void* from, size_t length,
                                      Sock* sock) {
  const ssize_t n = sock->QuickSend(StillAt(fd, sock), from, length);
  return n != 0 ? n : LongWrite(fd, from, length, sock);
}

// Sends with flags that a lane does not know.
template <class Raw>
ssize_t SendFlagged(Sock* sock, int fd, const iovec* iov, int count,
                    std::size_t total, int flags, Raw&& raw) {
  if (__builtin_expect((flags & kNotQuick) == 0, 1)) {
    return sock->Send(fd, iov, count, total, flags, raw);
  }
  if (flags & kKernelSend) sock->way_back().Pin(base::Reason::kPinnedOption);
  ZeroCopy* const zero_copy =
      flags & MSG_ZEROCOPY ? sock->zero_copy().ForCall() : nullptr;
  bool by_kernel = false;
  // If a lane has taken a part of the call, TCP copies the rest.
  const ssize_t n =
      sock->Send(fd, iov, count, total, flags & ~MSG_ZEROCOPY, [&] {
        by_kernel = true;
        const ssize_t taken = raw();
        // Here no lane can come in between.
        if (taken > 0 && zero_copy != nullptr) zero_copy->ByKernel();
        return taken;
      });
  if (n > 0 && !by_kernel && zero_copy != nullptr)
    sock->zero_copy().CopiedInstead();
  return n;
}

[[gnu::noinline]] ssize_t LongSend(int fd, const void* from, size_t length,
                                   int flags, Sock* sock) {
  length = Capped(length);
  const iovec iov{const_cast<void*>(from), length};
  if (GoesByParts(sock, length, flags)) {
    return SendByParts(fd, &iov, 1, length, flags, sock,
                       [&](const IovRest& part) {
                         return direct::send(fd, from, part.total(), flags);
                       });
  }
  return SendFlagged(sock, fd, &iov, 1, length, flags,
                     [&] { return direct::send(fd, from, length, flags); });
}

[[gnu::noinline, gnu::hot]] ssize_t RealSend(int fd, const void* from,
                                             size_t length, int flags) {
  return direct::send(fd, from, length, flags);
}

[[gnu::noinline, gnu::hot]] ssize_t KernelSend(int fd, const void* from,
                                               size_t length, int flags,
                                               Sock* sock) {
  return Route(sock).Sent(direct::send(fd, from, length, flags));
}

[[gnu::noinline, gnu::hot]] ssize_t PlainSend(int fd, const void* from,
                                              size_t length, int flags,
                                              Sock* sock) {
  if (length <= SendGate::kPart) [[likely]] {
    Sock::InKernel in(sock);
    if (in.May(fd, Mode::kPlain)) [[likely]]
      return in.Sent(direct::send(fd, from, length, flags));
  }
  return LongSend(fd, from, length, flags, sock);
}

[[gnu::noinline, gnu::hot]] ssize_t LaneSend(
    int fd, const void* from, size_t length, int flags, std::uintptr_t entry,
    const std::atomic<std::uintptr_t>* at) {
  Sock* const sock = LaneSock(entry);
  if (const ssize_t n = sock->QuickSend(Stands(at, entry), from, length);
      n != 0) [[likely]]
    return n;
  return LongSend(fd, from, length, flags, sock);
}

[[gnu::noinline]] ssize_t EngineSend(int fd, const void* from, size_t length,
                                     int flags, Sock* sock) {
  const ssize_t n = sock->QuickSend(StillAt(fd, sock), from, length);
  return n != 0 ? n : LongSend(fd, from, length, flags, sock);
}

// The short way of a vector, as QuickSend.  If the pieces have few bytes, they
// are put together first, which costs less than sending each.
[[gnu::noinline, gnu::hot]] ssize_t GatherSend(int fd, Sock* sock,
                                               const iovec* iov, int count,
                                               size_t total) {
  constexpr std::size_t kMost = 1024;
  if (count == 1) {
    return QuickSends(sock, iov->iov_base, total)
               ? sock->QuickSend(StillAt(fd, sock), iov->iov_base, total)
               : 0;
  }
  if (total - 1 >= kMost || sock->notice().source() != nullptr) return 0;
  char all[kMost];
  char* to = all;
  for (const iovec* end = iov + count; iov != end; ++iov) {
    if (iov->iov_len == 0) continue;
    // Another thread may change the vector, which may be longer now.
    if (Null(iov->iov_base) ||
        iov->iov_len > static_cast<std::size_t>(all + kMost - to)) {
      return 0;
    }
    if (!base::TryGet(to, iov->iov_base, iov->iov_len)) return 0;
    to += iov->iov_len;
  }
  return sock->QuickSend(StillAt(fd, sock), all,
                         static_cast<std::size_t>(to - all));
}

}  // namespace

[[gnu::hot]] ssize_t write(int fd, const void* from, size_t length) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickSends(entry, from, length))
    return LaneWrite(fd, from, length, entry, &fd_table[fd]);
  Sock* sock = SockIn(entry, fd);
  if (sock == nullptr) return RealWrite(fd, from, length);
  const LaneState::Call whose = Route(sock).WhoseCall();
  if (whose == LaneState::Call::kKernels)
    return KernelWrite(fd, from, length, sock);
  if (whose == LaneState::Call::kPlain)
    return PlainWrite(fd, from, length, sock);
  return QuickSends(sock, from, length) ? EngineWrite(fd, from, length, sock)
                                        : LongWrite(fd, from, length, sock);
}

[[gnu::hot]] ssize_t send(int fd, const void* from, size_t length, int flags) {
  const std::uintptr_t entry = WholeEntry(fd);
  if (QuickSends(entry, from, length) && (flags & kNotQuick) == 0) {
    return LaneSend(fd, from, length, flags, entry, &fd_table[fd]);
  }
  Sock* sock = SockIn(entry, fd);
  if (sock == nullptr) return RealSend(fd, from, length, flags);
  if ((flags & ~kPlainSend) == 0) {
    const LaneState::Call whose = Route(sock).WhoseCall();
    if (whose == LaneState::Call::kKernels) {
      return KernelSend(fd, from, length, flags, sock);
    }
    if (whose == LaneState::Call::kPlain) {
      return PlainSend(fd, from, length, flags, sock);
    }
  }
  return (flags & kNotQuick) == 0 && QuickSends(sock, from, length)
             ? EngineSend(fd, from, length, flags, sock)
             : LongSend(fd, from, length, flags, sock);
}

[[gnu::hot]] ssize_t sendto(int fd, const void* from, size_t length, int flags,
                            const sockaddr* address, socklen_t address_length) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) {
    return real::sendto(fd, from, length, flags, address, address_length);
  }
  if (!MayName(address, address_length)) {
    return real::sendto(fd, from, length, flags, address, address_length);
  }
  length = Capped(length);
  const iovec iov{const_cast<void*>(from), length};
  return SendFlagged(sock, fd, &iov, 1, length, flags, [&] {
    return real::sendto(fd, from, length, flags, address, address_length);
  });
}

[[gnu::hot]] ssize_t writev(int fd, const iovec* iov, int count) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) return direct::writev(fd, iov, count);
  std::size_t total = 0;
  // The kernel's writev of no bytes does not look at the socket; its write
  // does.
  if (!Total(iov, count, &total) || total == 0)
    return direct::writev(fd, iov, count);
  if (total > kMostMoved) [[unlikely]] {
    return WithCut(iov, count, [&](const iovec* cut, int pieces) {
      return hook::writev(fd, cut, pieces);
    });
  }
  if (Engine(sock)) {
    if (const ssize_t n = GatherSend(fd, sock, iov, count, total); n != 0)
      return n;
  }
  if (GoesByParts(sock, iov, count, total, 0)) [[unlikely]] {
    return SendByParts(fd, iov, count, total, 0, sock,
                       [&](const IovRest& part) {
                         return direct::writev(fd, part.iov(), part.count());
                       });
  }
  return sock->Send(fd, iov, count, total, 0,
                    [&] { return direct::writev(fd, iov, count); });
}

[[gnu::hot]] ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  Sock* sock = LookupSock(fd);
  if (sock == nullptr) {
    BeforeLooking();
    void* control;
    if (__builtin_expect(!Null(message) &&
                             base::TryLoad(&message->msg_control, &control) &&
                             control != nullptr && !base::tls_internal,
                         0)) {
      Passing passing(fd);
      passing.Before(message);
      const ssize_t n = direct::sendmsg(fd, message, flags);
      if (n < 0) passing.Failed(message);
      return n;
    }
    return direct::sendmsg(fd, message, flags);
  }
  std::size_t total = 0;
  void* name;
  std::size_t beside;
  if (Null(message) || !Total(message, &total) ||
      !base::TryLoad(&message->msg_name, &name) ||
      !base::TryLoad(&message->msg_controllen, &beside)) {
    return direct::sendmsg(fd, message, flags);
  }
  const int count = static_cast<int>(message->msg_iovlen);
  if (total > kMostMoved) [[unlikely]] {
    return WithCut(message->msg_iov, count, [&](iovec* cut, int pieces) {
      msghdr told = *message;
      told.msg_iov = cut;
      told.msg_iovlen = static_cast<std::size_t>(pieces);
      return hook::sendmsg(fd, &told, flags);
    });
  }
  if (((flags & kCompat) != 0 || beside != 0 || name != nullptr) &&
      Route(sock).MayTakeLane() && Refused(sock, fd, message, flags))
      [[unlikely]] {
    return -1;
  }
  if (total != 0 && (flags & kNotQuick) == 0 && Engine(sock)) {
    if (const ssize_t n = GatherSend(fd, sock, message->msg_iov, count, total);
        n != 0) {
      return n;
    }
  }
  if (beside == 0 && name == nullptr &&
      GoesByParts(sock, message->msg_iov, count, total, flags)) [[unlikely]] {
    return SendByParts(fd, message->msg_iov, count, total, flags, sock,
                       [&](const IovRest& part) {
                         msghdr told{};
                         told.msg_iov = const_cast<iovec*>(part.iov());
                         told.msg_iovlen =
                             static_cast<std::size_t>(part.count());
                         return direct::sendmsg(fd, &told, flags);
                       });
  }
  return SendFlagged(sock, fd, message->msg_iov, count, total, flags,
                     [&] { return direct::sendmsg(fd, message, flags); });
}

// Otherwise a call by parts would sleep in the kernel's own sendmsg, which
// knows nothing of the parts before, and is restarted.
bool GoesOn(int fd, short events, std::uint32_t signals,
            std::uint64_t* left_ns) {
  pollfd one{fd, events, 0};
  if (hook::poll(&one, 1, 0) != 0) return true;
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) != 0) return true;
  timespec limit{};
  bool limited = true;
  if (left_ns != nullptr) {
    limit = {static_cast<time_t>(*left_ns / 1'000'000'000),
             static_cast<long>(*left_ns % 1'000'000'000)};
  } else {
    timeval most{};
    socklen_t length = sizeof most;
    real::getsockopt(fd, SOL_SOCKET,
                     events == POLLOUT ? SO_SNDTIMEO : SO_RCVTIMEO, &most,
                     &length);
    limit = {most.tv_sec, most.tv_usec * 1000};
    limited = most.tv_sec != 0 || most.tv_usec != 0;
  }
  // No handler may run between the look at `any` and the sleep.  So only the
  // sleep lets signals through.
  class Blocked {
   public:
    Blocked() {
      sigset_t all;
      ::sigfillset(&all);
      base::ForgetMask();
      ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~Blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    const sigset_t* before() const { return &before_; }

   private:
    sigset_t before_;
  };
  const Blocked blocked;
  if (tls_signals.any != signals) return false;
  const std::uint64_t start = base::NowNs();
  const bool ready =
      hook::ppoll(&one, 1, limited ? &limit : nullptr, blocked.before()) > 0;
  if (left_ns != nullptr) {
    *left_ns -= std::min(*left_ns, base::NowNs() - start);
  }
  return ready;
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (LookupSock(fd) == nullptr) {
    BeforeLooking();
    Passing passing(fd);
    unsigned looked = 0;
    for (; looked < count && !Null(messages); ++looked) {
      void* control;
      if (!base::TryLoad(&messages[looked].msg_hdr.msg_control, &control)) {
        break;
      }
      if (control != nullptr && !base::tls_internal) {
        passing.Before(&messages[looked].msg_hdr);
      }
    }
    const int sent = real::sendmmsg(fd, messages, count, flags);
    passing.Failed(messages, sent < 0 ? 0 : static_cast<unsigned>(sent),
                   looked);
    return sent;
  }
  if (Null(messages)) return real::sendmmsg(fd, messages, count, flags);
  const unsigned most = std::min<unsigned>(count, IOV_MAX);  // as the kernel
  const std::uint32_t signals = tls_signals.any;
  for (unsigned sent = 0; sent < most; ++sent) {
    const msghdr& message = messages[sent].msg_hdr;
    // The whole header is checked first.  If the socket is not on a lane, the
    // kernel reports a bad header.
    if (!base::Readable(&messages[sent], sizeof *messages))
      return Faulted(sent);
    // A handler has run after the first message.  What finds room still goes,
    // but no later message sleeps, not even for its rest.
    const bool over = sent > 0 && tls_signals.any != signals;
    if (sent > 0 && !over && (flags & MSG_DONTWAIT) == 0 &&
        !GoesOn(fd, POLLOUT, signals)) {
      return static_cast<int>(sent);
    }
    const ssize_t n =
        hook::sendmsg(fd, &message, over ? flags | MSG_DONTWAIT : flags);
    if (n < 0) return sent > 0 ? static_cast<int>(sent) : -1;
    if (!base::TryStore(&messages[sent].msg_len, static_cast<unsigned>(n))) {
      return Faulted(sent);
    }
    std::size_t left = static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
      // If a message went in part, the next would follow that part.
      if (message.msg_iov[i].iov_len > left) return static_cast<int>(sent) + 1;
      left -= message.msg_iov[i].iov_len;
    }
  }
  return static_cast<int>(most);
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
  if (total > kMostMoved) [[unlikely]] {
    return WithCut(iov, count, [&](const iovec* cut, int pieces) {
      return hook::pwritev2(fd, cut, pieces, offset, flags);
    });
  }
  if ((flags & ~kVectorFlags) != 0)
    sock->way_back().Pin(base::Reason::kPinnedOption);
  return sock->Send(
      fd, iov, count, total, (flags & RWF_NOWAIT) ? MSG_DONTWAIT : 0,
      [&] { return real::pwritev2(fd, iov, count, offset, flags); });
}

ssize_t pwritev64v2(int fd, const iovec* iov, int count, off64_t offset,
                    int flags) {
  return hook::pwritev2(fd, iov, count, offset, flags);
}

}  // namespace rcsock::posix::hook
