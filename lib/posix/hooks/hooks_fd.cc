// Descriptors are made, closed and copied here.

#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "lib/base/alone.h"
#include "lib/base/direct.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/listing.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/given.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/stdio.h"
#include "lib/posix/hooks/uring.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/address_reuse.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_settings.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::hook {
namespace {

bool Inet(int family) { return family == AF_INET || family == AF_INET6; }

// dup2 and dup3 would take a descriptor of rcsock's own away.
bool RefuseTarget(int to) {
  if (!base::IsInternalFd(to) || base::tls_internal || InBorrowedMemory()) {
    return false;
  }
  errno = EBUSY;
  return true;
}

// Returns whether the number is at the limit or past it, and may be open.  dup2
// and dup3 then fail, and the number keeps its file.
bool PastLimit(int to) {
  return Lookup(to) != nullptr && BeyondLimit(static_cast<rlim_t>(to) + 1);
}

// The port of an address that the kernel has read, in network order.  0: no
// address, or of another family.
std::uint16_t PortIn(const sockaddr* address, socklen_t length) {
  const auto* inet = reinterpret_cast<const sockaddr_in*>(address);
  sa_family_t family = AF_UNSPEC;
  std::uint16_t port = 0;
  return length >= sizeof *inet && base::TryLoad(&inet->sin_family, &family) &&
                 Inet(family) && base::TryLoad(&inet->sin_port, &port)
             ? port
             : 0;
}

// The port that a socket is bound to, or 0.
std::uint16_t OwnPort(int fd) {
  const int saved = errno;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  const bool known = ::syscall(SYS_getsockname, fd, &own, &length) == 0;
  errno = saved;
  return known ? PortIn(reinterpret_cast<sockaddr*>(&own), length) : 0;
}

// Calls `with` for the stream of a number, which stays that connection's for as
// long.  Returns false if the number names none.
template <class With>
bool WithSock(int fd, With&& with) {
  if (base::Lone()) {
    // The look-up may wait, so handlers run until then.  One of them may have
    // made a thread.
    Sock* const sock = LookupSock(fd);
    const Critical critical;
    if (sock != nullptr && base::Lone() && Entry(fd) == sock) {
      with(sock);
      return true;
    }
  }
  const SockAt at(fd);
  if (!at) return false;
  with(at.get());
  return true;
}

// The rest of accept, for a new connection that rcsock may follow.
[[gnu::noinline, gnu::hot]] int Accepted(int listener, int fd,
                                         const sockaddr_storage& peer,
                                         socklen_t length, bool nonblock) {
  if (fd < 0) return fd;
  const int saved = errno;
  Evict(fd);
  if (Inet(peer.ss_family) && !InBorrowedMemory()) {
    bool tcp = LookupSock(listener) != nullptr;
    if (!tcp) {
      // The process was started with this listener.
      tcp = IsTcp(fd);
    }
    if (tcp) BeforeLooking();
    Sock* sock = tcp ? Sock::New(stream::Role::kAcceptor, nonblock) : nullptr;
    if (sock != nullptr) {
      sock->peer().Set(fd, reinterpret_cast<const sockaddr*>(&peer), length);
      if (!WithSock(listener,
                    [=](Sock* from) { Settings(sock).Inherit(from); })) {
        Settings(sock).InheritFromUnknown(fd);
      }
      sock->search().Allow();
      Bind(fd, sock);
      if (Sock* bound = LookupSock(fd)) bound->search().BeginIfWorth();
    }
  }
  errno = saved;
  return fd;
}

}  // namespace

namespace {

[[gnu::noinline]] int SocketOfOurs(int domain, int type, int protocol) {
  return base::OpenHighForParent(
      [&] { return ::syscall(SYS_socket, domain, type, protocol); });
}

// The rest of socket.  `copies`: what TableCopies said before.
[[gnu::noinline, gnu::hot]] int Made(int fd, std::uint32_t copies, int domain,
                                     int type, int protocol) {
  Evict(fd);
  if (domain == AF_NETLINK && !InBorrowedMemory()) AfterNetlink(protocol);
  if (!Inet(domain) || (type & 0xf) != SOCK_STREAM ||
      (protocol != 0 && protocol != IPPROTO_TCP) || InBorrowedMemory()) {
    return fd;
  }
  BeforeLooking();
  if (Sock* sock =
          Sock::New(stream::Role::kConnector, (type & SOCK_NONBLOCK) != 0)) {
    sock->status_known.store(copies, std::memory_order_relaxed);
    Bind(fd, sock);
  }
  return fd;
}

}  // namespace

// Has nothing to unwind, see direct::InLine.
[[gnu::hot]] int socket(int domain, int type, int protocol) {
  // Moved up as in epoll_create1: librdmacm keeps its connection to ibacm for
  // good.
  if (base::tls_internal) return SocketOfOurs(domain, type, protocol);
  const std::uint32_t copies = TableCopies();
  const int fd = direct::SocketInLine(domain, type, protocol);
  return fd < 0 ? fd : Made(fd, copies, domain, type, protocol);
}

int eventfd(unsigned initial, int flags) {
  // As in epoll_create1.
  if (base::tls_internal) {
    return base::OpenHigh(
        [&] { return ::syscall(SYS_eventfd2, initial, flags); });
  }
  const int fd = real::eventfd(initial, flags);
  if (fd < 0) return fd;
  Evict(fd);
  return fd;
}

int timerfd_create(int clock, int flags) {
  if (base::tls_internal) {
    return base::OpenHigh(
        [&] { return ::syscall(SYS_timerfd_create, clock, flags); });
  }
  const int fd = real::timerfd_create(clock, flags);
  if (fd < 0) return fd;
  Evict(fd);
  return fd;
}

int bind(int fd, const sockaddr* address, socklen_t length) {
  const int result = real::bind(fd, address, length);
  if (result == 0 || errno != EADDRINUSE) return result;
  // UDP has ports of its own.
  const std::uint16_t port =
      LookupSock(fd) != nullptr ? PortIn(address, length) : 0;
  errno = EADDRINUSE;
  return WithPortOfEnded(port, result,
                         [&] { return real::bind(fd, address, length); });
}

int listen(int fd, int backlog) {
  const int result = real::listen(fd, backlog);
  if (result == 0) {
    if (const SockAt sock(fd); sock) {
      sock->status_known.store(0);  // its registrations are the kernel's alone
      sock->peer().SetListening(fd);
    }
  }
  return result;
}

// Has nothing to unwind, see direct::InLine.
[[gnu::hot]] int accept4(int fd, sockaddr* address, socklen_t* length,
                         int flags) {
  // As far as the kernel fills it.
  sockaddr_storage peer;
  peer.ss_family = AF_UNSPEC;
  socklen_t size = sizeof peer;
  int accepted;
  if (address == nullptr) {
    accepted = direct::Accept4InLine(fd, reinterpret_cast<sockaddr*>(&peer),
                                     &size, flags);
  } else {
    // The kernel writes the address there, or reports why it cannot.
    socklen_t capacity = 0;
    BeforeLooking();
    if (Null(length) || !base::TryLoad(length, &capacity)) {
      return real::accept4(fd, address, length, flags);
    }
    accepted = direct::Accept4InLine(fd, address, length, flags);
    if (accepted < 0) return accepted;
    size = *length;
    if (size <= capacity && size <= sizeof peer) {
      std::memcpy(&peer, address, size);
    } else {
      size = sizeof peer;
      ::syscall(SYS_getpeername, accepted, &peer, &size);
    }
  }
  return Accepted(fd, accepted, peer, size, (flags & SOCK_NONBLOCK) != 0);
}

[[gnu::hot]] int accept(int fd, sockaddr* address, socklen_t* length) {
  return hook::accept4(fd, address, length, 0);
}

[[gnu::hot]] int connect(int fd, const sockaddr* address, socklen_t length) {
  Sock* sock = LookupSock(fd);
  const std::uint32_t life = sock != nullptr ? sock->calls().Life() : 0;
  // AF_UNSPEC ends a connection.  The descriptor may get another.
  sa_family_t family = AF_INET;
  if (sock != nullptr && !Null(address) &&
      length >= static_cast<socklen_t>(sizeof family) &&
      base::TryLoad(&address->sa_family, &family) && family == AF_UNSPEC) {
    // A peer that hangs does not let go of the lane.
    if (!sock->way_back().Pin(base::Reason::kPinnedOption)) {
      errno = EBUSY;
      return -1;
    }
    const int result = real::connect(fd, address, length);
    if (result == 0) sock->read_ahead().Drop();
    return result;
  }
  int result = real::connect(fd, address, length);
  if (result != 0 && errno == EADDRNOTAVAIL) {
    result = WithPortOfEnded(OwnPort(fd), result, [&] {
      return real::connect(fd, address, length);
    });
  }
  // An interrupted caller may poll for the end of connect, and never call
  // again.
  if (sock != nullptr &&
      (result == 0 || errno == EINPROGRESS || errno == EINTR)) {
    const int saved = errno;
    WithSock(fd, [&](Sock* still) {
      // The call may have waited long, and the number been closed meanwhile,
      // and even be another connection's with the same object.
      if (still != sock || sock->calls().Life() != life) return;
      if (sock->listening.load(std::memory_order_relaxed)) {
        // The socket was a listener until shutdown().  The kernel alone knows
        // the options that were set on the listener.
        sock->listening.store(false, std::memory_order_relaxed);
        sock->way_back().Pin(base::Reason::kPinnedOption);
      }
      sock->peer().SetRole(stream::Role::kConnector);
      sock->peer().Set(fd, address, length);
      sock->search().Allow();
      if (result == 0) sock->search().BeginIfWorth();
    });
    errno = saved;
  }
  return result;
}

int shutdown(int fd, int how) {
  Sock* sock = LookupSock(fd);
  return sock == nullptr ? real::shutdown(fd, how) : sock->Shutdown(fd, how);
}

[[gnu::hot]] int close(int fd) {
  if (__builtin_expect(base::IsInternalFd(fd), 0)) {
    if (base::tls_internal) {
      base::CloseRaw(fd);
      return 0;
    }
    // Also in a child of vfork, which may have to wake the conductor.
    errno = EBADF;
    return -1;
  }
  return CloseAny(fd);
}

int close_range(unsigned first, unsigned last, int flags) {
  if (first <= last) flags = BeforeParting(flags, CLOSE_RANGE_UNSHARE);
  if ((flags & CLOSE_RANGE_CLOEXEC) != 0 || first > last) {
    return real::close_range(first, last, flags);
  }
  // A kernel without close_range, or without these flags, closes nothing.  No
  // descriptor has this number.
  if (real::close_range(~0u, ~0u, flags & ~int{CLOSE_RANGE_UNSHARE}) != 0)
    return -1;
  if ((flags & CLOSE_RANGE_UNSHARE) != 0 && !InBorrowedMemory()) {
    // The thread leaves the shared table.  The numbers still belong to the
    // other threads.
    if (::syscall(SYS_unshare, CLONE_FILES) != 0) return -1;
    flags = 0;
  } else {
    CloseFollowed(first, last);
  }
  BeforeClose(first, last);
  // Closes around rcsock's own descriptors.
  constexpr unsigned kHighest = 65536;
  unsigned from = first;
  for (unsigned fd = first; fd <= last && fd < kHighest; ++fd) {
    if (!base::IsInternalFd(static_cast<int>(fd))) continue;
    if (fd > from) real::close_range(from, fd - 1, flags);
    from = fd + 1;
  }
  return from <= last ? real::close_range(from, last, flags) : 0;
}

void closefrom(int first) {
  const int from = first < 0 ? 0 : first;
  if (hook::close_range(static_cast<unsigned>(from), ~0u, 0) == 0) return;
  const auto close_other = [](int fd) {
    if (!base::IsInternalFdOrGone(fd)) hook::close(fd);
  };
  // As libc does without close_range.  Of a million numbers few are open.
  if (base::EachDescriptor(from, close_other)) return;
  const long top = std::min<long>(::sysconf(_SC_OPEN_MAX), kMaxFds);
  for (int fd = from; fd < top; ++fd) close_other(fd);
}

// --- Copies

int dup(int fd) {
  if (Entry(fd) == nullptr) {
    const int copy = real::dup(fd);
    if (copy >= 0 && !InBorrowedMemory()) Evict(copy);
    return copy;
  }
  if (InBorrowedMemory()) return real::dup(fd);
  const HeldNumber held(fd);
  const int copy = real::dup(fd);
  if (copy >= 0) CopyHeld(held, copy);
  return copy;
}

int dup3(int from, int to, int flags) {
  if (from != to && InBorrowedMemory()) Lend(to);
  if (InBorrowedMemory() || from == to || (flags & ~O_CLOEXEC) != 0 ||
      ::syscall(SYS_fcntl, from, F_GETFD) < 0 || PastLimit(to)) {
    return real::dup3(from, to, flags);
  }
  if (RefuseTarget(to)) return -1;
  BeforeReplacing(LookupSock(from), to);
  return ReplaceAny(to, from, flags);
}

int dup2(int from, int to) {
  if (from != to && InBorrowedMemory()) Lend(to);
  if (InBorrowedMemory() || from == to ||
      ::syscall(SYS_fcntl, from, F_GETFD) < 0 || PastLimit(to)) {
    return real::dup2(from, to);
  }
  if (RefuseTarget(to)) return -1;
  BeforeReplacing(LookupSock(from), to);
  return ReplaceAny(to, from, 0);
}

}  // namespace rcsock::posix::hook
