// librcsock_rsocket.so: the names of <rdma/rsocket.h>.  A stream rsocket is a
// TCP stream of librcsock, a datagram one is UDP.

#include "lib/include/rcsock/rsocket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstring>
#include <ctime>
#include <exception>
#include <vector>

#include "lib/api/rsocket/channels.h"
#include "lib/include/rcsock/rcsock.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using rcsock::rsocket::Channel;
using rcsock::rsocket::Channels;
using Shared = std::shared_ptr<Channel>;
using Phase = Channel::Phase;

int Fail(int error) {
  errno = error;
  return -1;
}

// Nothing throws through C; all that is thrown here is for want of memory.
// (What a cancelled thread is unwound by is no exception of ours.)
template <class Call>
auto Guarded(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception&) {
    errno = ENOMEM;
    return -1;
  }
}

bool Nonblocking(int fd, int flags) {
  return (flags & MSG_DONTWAIT) != 0 ||
         (rcs_fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

std::int64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// What may be the beginning of a hello is there to be read, so no wait for more
// of it would wait.
void Nap() {
  const timespec brief{0, 1'000'000};
  ::nanosleep(&brief, nullptr);
}

// Waits for the stream itself; false with errno (EINTR).
bool WaitFor(int fd, short events, int timeout) {
  pollfd one{fd, events, 0};
  return rcs_poll(&one, 1, timeout) >= 0;
}

// For poll; what is beyond its range is as good as for ever (24 days).
int Milliseconds(const timeval& time) {
  constexpr std::int64_t kMost = INT_MAX / 1000 - 1;
  if (time.tv_sec > kMost) return INT_MAX;
  return static_cast<int>(time.tv_sec * 1000 + (time.tv_usec + 999) / 1000);
}

// Until there is something to be read, as the stream itself waits in a read:
// with its time-out, and on after a signal whose handler says so.  False with
// errno, which may be the stream's own error.
bool WaitToRead(int fd) {
  char first;
  return rcs_recv(fd, &first, 1, MSG_PEEK) >= 0;
}

// With the time-out of a send; false with errno (EINTR, EAGAIN).
bool WaitToSend(int fd, short events = POLLOUT) {
  timeval time{};
  socklen_t size = sizeof time;
  int limit = -1;
  if (rcs_getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, &size) == 0 &&
      (time.tv_sec > 0 || time.tv_usec > 0)) {
    limit = Milliseconds(time);
  }
  pollfd one{fd, events, 0};
  const int n = rcs_poll(&one, 1, limit);
  if (n == 0) errno = EAGAIN;
  return n > 0;
}

// Until the peer has answered the hello, or `timeout`.
bool Shake(const Shared& channel, int timeout) {
  const std::int64_t end = NowMs() + timeout;
  for (;;) {
    channel->Step();
    const Phase phase = channel->phase();
    if (phase == Phase::kPlain || phase == Phase::kFramed) return true;
    const std::int64_t left = timeout < 0 ? -1 : end - NowMs();
    if (timeout >= 0 && left <= 0) return true;
    if (channel->undecided()) Nap();
    if (!WaitFor(channel->fd(), phase == Phase::kConnecting ? POLLOUT : POLLIN,
                 static_cast<int>(left))) {
      return false;
    }
  }
}

// The channel that a call for data must go by; null: the stream itself.
// With `settle` a handshake that has not ended is ended first.
Shared ForData(int fd) {
  Shared channel = Channels::Find(fd);
  if (channel == nullptr) return nullptr;
  if (!channel->framed() && channel->phase() != Phase::kIdle) channel->Step();
  if (channel->phase() == Phase::kPlain) {
    Channels::Forget(fd);
    return nullptr;
  }
  return channel->phase() == Phase::kIdle ? nullptr : channel;
}

ssize_t RecvVector(int fd, const iovec* iov, int count, int flags,
                   sockaddr* address, socklen_t* length) {
  if (address != nullptr && length != nullptr) *length = 0;
  return Guarded([&]() -> ssize_t {
    std::size_t total = 0;
    for (int i = 0; i < count; ++i) total += iov[i].iov_len;
    std::vector<iovec> rest(iov, iov + count);
    std::size_t done = 0;
    for (;;) {
      const Shared channel = ForData(fd);
      ssize_t n;
      if (channel == nullptr || !channel->framed()) {
        // What follows a hello is not there before it.
        if (channel != nullptr) {
          if (channel->undecided()) Nap();
          n = Fail(EAGAIN);
        } else {
          msghdr message{};
          message.msg_iov = rest.data();
          message.msg_iovlen = rest.size();
          return rcs_recvmsg(fd, &message, flags);
        }
      } else {
        n = channel->Recv(rest.data(), static_cast<int>(rest.size()), flags);
        Channels::Taken(channel);
      }
      if (n > 0) {
        done += static_cast<std::size_t>(n);
        if ((flags & (MSG_WAITALL | MSG_PEEK)) != MSG_WAITALL ||
            done == total) {
          return static_cast<ssize_t>(done);
        }
        std::size_t skip = static_cast<std::size_t>(n);
        for (iovec& one : rest) {
          const std::size_t taken = std::min(skip, one.iov_len);
          one.iov_base = static_cast<char*>(one.iov_base) + taken;
          one.iov_len -= taken;
          skip -= taken;
        }
        continue;
      }
      if (n == 0) return static_cast<ssize_t>(done);
      if (errno != EAGAIN || Nonblocking(fd, flags) || !WaitToRead(fd)) {
        return done > 0 ? static_cast<ssize_t>(done) : -1;
      }
    }
  });
}

// `once()` is a send that does not sleep.
template <class Once>
ssize_t Repeat(int fd, int flags, std::size_t total, Once&& once) {
  std::size_t done = 0;
  for (;;) {
    const ssize_t n = once(done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      if (done >= total) return static_cast<ssize_t>(done);
      continue;
    }
    if (n == 0) return static_cast<ssize_t>(done);
    if (errno != EAGAIN || Nonblocking(fd, flags) || !WaitToSend(fd)) {
      return done > 0 ? static_cast<ssize_t>(done) : -1;
    }
  }
}

ssize_t SendVector(const Shared& channel, int fd, const iovec* iov, int count,
                   int flags) {
  std::size_t total = 0;
  for (int i = 0; i < count; ++i) total += iov[i].iov_len;
  if (total == 0) return 0;
  for (channel->Step(); channel->handshaking(); channel->Step()) {
    if (Nonblocking(fd, flags)) return Fail(EAGAIN);
    if (channel->undecided()) Nap();
    const bool connecting = channel->phase() == Phase::kConnecting;
    if (!WaitToSend(fd, connecting ? POLLOUT : POLLIN)) return -1;
  }
  if (!channel->framed()) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(iov);
    message.msg_iovlen = static_cast<std::size_t>(count);
    return rcs_sendmsg(fd, &message, flags);
  }
  std::vector<iovec> rest(iov, iov + count);
  std::size_t skipped = 0;
  return Repeat(fd, flags, total, [&](std::size_t done) -> ssize_t {
    std::size_t skip = done - skipped;
    skipped = done;
    for (iovec& one : rest) {
      const std::size_t taken = std::min(skip, one.iov_len);
      one.iov_base = static_cast<char*>(one.iov_base) + taken;
      one.iov_len -= taken;
      skip -= taken;
    }
    std::size_t first = 0;
    while (first + 1 < rest.size() && rest[first].iov_len == 0) ++first;
    const ssize_t n = channel->Send(rest.data() + first,
                                    static_cast<int>(rest.size() - first));
    if (channel->owes()) Channels::Pump();
    return n;
  });
}

// The channel of a stream on which a send must go by it.
Shared ForSend(int fd) {
  Shared channel = ForData(fd);
  if (channel == nullptr || channel->framed()) return channel;
  // An acceptor that speaks first does so in plain bytes; a hello that comes
  // after that is only dropped.
  if (channel->phase() == Phase::kMaybe) channel->SpeakFirst();
  return channel->framed() || channel->handshaking() ? channel : nullptr;
}

}  // namespace

// --- Connections

RCSOCK_EXPORT int rsocket(int domain, int type, int protocol) {
  const int fd = rcs_socket(domain, type, protocol);
  if (fd >= 0) Channels::Forget(fd);
  return fd;
}

RCSOCK_EXPORT int rbind(int fd, const sockaddr* address, socklen_t length) {
  return rcs_bind(fd, address, length);
}

RCSOCK_EXPORT int rlisten(int fd, int backlog) {
  return rcs_listen(fd, backlog);
}

RCSOCK_EXPORT int raccept(int fd, sockaddr* address, socklen_t* length) {
  const int accepted = rcs_accept(fd, address, length);
  if (accepted < 0) return -1;
  return Guarded([&] {
    const Shared listener = Channels::Find(fd);
    const Shared channel =
        Channels::CanHold(accepted) ? Channels::Make(accepted) : nullptr;
    // Beyond what is kept here: a stream, and no more.
    if (channel == nullptr) return accepted;
    channel->Accepted(listener.get());
    // Who is to map memory must know now whether its peer does the same; the
    // hello of one that does is on its way.
    Shake(channel, channel->iomap_size() > 0 ? 1000 : 0);
    return accepted;
  });
}

RCSOCK_EXPORT int rconnect(int fd, const sockaddr* address, socklen_t length) {
  return Guarded([&] {
    Shared channel = Channels::Find(fd);
    if (channel != nullptr && channel->iomap_size() == 0) channel = nullptr;
    if (channel != nullptr && channel->handshaking()) return Fail(EALREADY);
    const int result = rcs_connect(fd, address, length);
    if (channel == nullptr || (result != 0 && errno != EINPROGRESS)) {
      return result;
    }
    channel->Connecting();
    if (result != 0) return result;
    channel->Step();
    if (!channel->handshaking()) return 0;
    if (Nonblocking(fd, 0)) return Fail(EINPROGRESS);
    return Shake(channel, -1) ? 0 : -1;
  });
}

RCSOCK_EXPORT int rshutdown(int fd, int how) {
  return Guarded([&] {
    const Shared channel = Channels::Find(fd);
    if (channel != nullptr && channel->framed() && how != SHUT_RD) {
      channel->SettlePlaced();
      const std::int64_t end = NowMs() + 5000;
      while (channel->SendOwed() && NowMs() < end) WaitFor(fd, POLLOUT, 100);
    }
    return rcs_shutdown(fd, how);
  });
}

RCSOCK_EXPORT int rclose(int fd) {
  return Guarded([&] {
    if (const Shared channel = Channels::Find(fd)) {
      channel->SettlePlaced();
      const std::int64_t end = NowMs() + 5000;
      while (channel->framed() && channel->SendOwed() && NowMs() < end) {
        WaitFor(fd, POLLOUT, 100);
      }
      Channels::Forget(fd);
    }
    return rcs_close(fd);
  });
}

// --- Data

RCSOCK_EXPORT ssize_t rrecv(int fd, void* to, size_t length, int flags) {
  if (!Channels::Has(fd)) return rcs_recv(fd, to, length, flags);
  return Guarded([&] {
    if (ForData(fd) == nullptr) return rcs_recv(fd, to, length, flags);
    const iovec iov{to, length};
    return RecvVector(fd, &iov, 1, flags, nullptr, nullptr);
  });
}

RCSOCK_EXPORT ssize_t rrecvfrom(int fd, void* to, size_t length, int flags,
                                sockaddr* address, socklen_t* address_length) {
  return Guarded([&] {
    if (ForData(fd) == nullptr) {
      return rcs_recvfrom(fd, to, length, flags, address, address_length);
    }
    const iovec iov{to, length};
    return RecvVector(fd, &iov, 1, flags, address, address_length);
  });
}

RCSOCK_EXPORT ssize_t rrecvmsg(int fd, msghdr* message, int flags) {
  return Guarded([&]() -> ssize_t {
    if (message == nullptr || ForData(fd) == nullptr) {
      return rcs_recvmsg(fd, message, flags);
    }
    const ssize_t n =
        RecvVector(fd, message->msg_iov, static_cast<int>(message->msg_iovlen),
                   flags, nullptr, nullptr);
    if (n >= 0) {
      message->msg_namelen = 0;
      message->msg_controllen = 0;
      message->msg_flags = 0;
    }
    return n;
  });
}

RCSOCK_EXPORT ssize_t rread(int fd, void* to, size_t length) {
  return rrecv(fd, to, length, 0);
}

RCSOCK_EXPORT ssize_t rreadv(int fd, const iovec* iov, int count) {
  return Guarded([&] {
    if (ForData(fd) == nullptr) return rcs_readv(fd, iov, count);
    return RecvVector(fd, iov, count, 0, nullptr, nullptr);
  });
}

RCSOCK_EXPORT ssize_t rsend(int fd, const void* from, size_t length,
                            int flags) {
  if (!Channels::Has(fd)) return rcs_send(fd, from, length, flags);
  return Guarded([&] {
    const Shared channel = ForSend(fd);
    if (channel == nullptr) return rcs_send(fd, from, length, flags);
    const iovec iov{const_cast<void*>(from), length};
    return SendVector(channel, fd, &iov, 1, flags);
  });
}

RCSOCK_EXPORT ssize_t rsendto(int fd, const void* from, size_t length,
                              int flags, const sockaddr* address,
                              socklen_t address_length) {
  return Guarded([&] {
    const Shared channel = ForSend(fd);
    if (channel == nullptr) {
      return rcs_sendto(fd, from, length, flags, address, address_length);
    }
    const iovec iov{const_cast<void*>(from), length};
    return SendVector(channel, fd, &iov, 1, flags);
  });
}

RCSOCK_EXPORT ssize_t rsendmsg(int fd, const msghdr* message, int flags) {
  return Guarded([&] {
    const Shared channel = message == nullptr ? nullptr : ForSend(fd);
    if (channel == nullptr) return rcs_sendmsg(fd, message, flags);
    return SendVector(channel, fd, message->msg_iov,
                      static_cast<int>(message->msg_iovlen), flags);
  });
}

RCSOCK_EXPORT ssize_t rwrite(int fd, const void* from, size_t length) {
  return rsend(fd, from, length, 0);
}

RCSOCK_EXPORT ssize_t rwritev(int fd, const iovec* iov, int count) {
  return Guarded([&] {
    const Shared channel = ForSend(fd);
    if (channel == nullptr) return rcs_writev(fd, iov, count);
    return SendVector(channel, fd, iov, count, 0);
  });
}

// --- Waiting

RCSOCK_EXPORT int rpoll(pollfd* fds, nfds_t count, int timeout) {
  if (fds == nullptr || std::none_of(fds, fds + count, [](const pollfd& one) {
        return Channels::Has(one.fd);
      })) {
    return rcs_poll(fds, count, timeout);
  }
  return Guarded([&] {
    const std::int64_t end = NowMs() + timeout;
    std::vector<pollfd> asked(fds, fds + count);
    std::vector<Shared> channels(count);
    for (;;) {
      for (nfds_t i = 0; i < count; ++i) {
        asked[i] = fds[i];
        channels[i] = ForData(fds[i].fd);
        if (channels[i] == nullptr) continue;
        channels[i]->Progress();
        switch (channels[i]->phase()) {
          case Phase::kConnecting:
            asked[i].events = POLLOUT;
            break;
          case Phase::kHello:
            asked[i].events = POLLIN;
            break;
          default:
            break;
        }
      }
      const std::int64_t left =
          timeout <= 0 ? timeout : std::max<std::int64_t>(0, end - NowMs());
      const int n = rcs_poll(asked.data(), count, static_cast<int>(left));
      if (n < 0) return n;
      int ready = 0;
      for (nfds_t i = 0; i < count; ++i) {
        short got = asked[i].revents;
        if (const Shared& channel = channels[i]; channel != nullptr) {
          const bool shaking = channel->handshaking();
          if (got != 0 && !channel->framed()) {
            const bool spoken = channel->phase() == Phase::kSpoken;
            channel->Step();
            if (channel->undecided()) Nap();
            if (spoken && channel->phase() != Phase::kSpoken) {
              // What there was may have been a hello, and is gone.
              pollfd again{fds[i].fd, asked[i].events, 0};
              if (rcs_poll(&again, 1, 0) >= 0) got = again.revents;
            }
          }
          channel->Progress();
          if (shaking) {
            // Connected: that is what POLLOUT says here.
            got = static_cast<short>(got & ~(POLLIN | POLLOUT));
            if (!channel->handshaking()) {
              got = static_cast<short>(got | (fds[i].events & POLLOUT));
            }
          } else if (channel->framed()) {
            if ((got & POLLIN) != 0 && !channel->Readable()) {
              got = static_cast<short>(got & ~(POLLIN | POLLRDNORM));
            }
            if ((got & POLLOUT) != 0 && channel->SendOwed()) {
              got = static_cast<short>(got & ~(POLLOUT | POLLWRNORM));
            }
          }
        }
        fds[i].revents = got;
        if (got != 0) ++ready;
      }
      if (ready > 0 || timeout == 0) return ready;
      if (timeout > 0 && NowMs() >= end) return 0;
    }
  });
}

RCSOCK_EXPORT int rselect(int count, fd_set* in, fd_set* out, fd_set* except,
                          timeval* timeout) {
  bool any = false;
  const auto has = [](const fd_set* set, int fd) {
    return set != nullptr && FD_ISSET(fd, set);
  };
  if (count < 0 || count > FD_SETSIZE ||
      (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0))) {
    return Fail(EINVAL);
  }
  for (int fd = 0; fd < count && !any; ++fd) {
    any = (has(in, fd) || has(out, fd) || has(except, fd)) && Channels::Has(fd);
  }
  if (!any) return rcs_select(count, in, out, except, timeout);
  return Guarded([&] {
    std::vector<pollfd> fds;
    for (int fd = 0; fd < count; ++fd) {
      const int events = (has(in, fd) ? POLLIN : 0) |
                         (has(out, fd) ? POLLOUT : 0) |
                         (has(except, fd) ? POLLPRI : 0);
      if (events != 0) fds.push_back({fd, static_cast<short>(events), 0});
    }
    const int n = rpoll(fds.data(), fds.size(),
                        timeout == nullptr ? -1 : Milliseconds(*timeout));
    if (n < 0) return n;
    int bits = 0;
    for (fd_set* set : {in, out, except}) {
      if (set != nullptr) FD_ZERO(set);
    }
    for (const pollfd& one : fds) {
      if ((one.revents & POLLNVAL) != 0) return Fail(EBADF);
      const auto tell = [&](fd_set* set, int asked, int means) {
        if ((one.events & asked) == 0 || (one.revents & means) == 0) return;
        FD_SET(one.fd, set);
        ++bits;
      };
      tell(in, POLLIN, POLLIN | POLLHUP | POLLERR);
      tell(out, POLLOUT, POLLOUT | POLLERR);
      tell(except, POLLPRI, POLLPRI);
    }
    return bits;
  });
}

// --- Names and options

RCSOCK_EXPORT int rgetpeername(int fd, sockaddr* address, socklen_t* length) {
  return rcs_getpeername(fd, address, length);
}

RCSOCK_EXPORT int rgetsockname(int fd, sockaddr* address, socklen_t* length) {
  return rcs_getsockname(fd, address, length);
}

RCSOCK_EXPORT int rsetsockopt(int fd, int level, int name, const void* value,
                              socklen_t length) {
  if (level != SOL_RDMA) return rcs_setsockopt(fd, level, name, value, length);
  int type = 0;
  socklen_t size = sizeof type;
  if (rcs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return -1;
  if (name == RDMA_ROUTE) return 0;  // TCP finds its own
  if (name < RDMA_SQSIZE || name > RDMA_IOMAPSIZE) return Fail(ENOTSUP);
  if (value == nullptr) return Fail(EFAULT);
  if (length < sizeof(int)) return Fail(EINVAL);
  return Guarded([&] {
    int number;
    std::memcpy(&number, value, sizeof number);
    if (number < 0) return Fail(EINVAL);
    if (type == SOCK_STREAM && name == RDMA_IOMAPSIZE) {
      Channels::Make(fd)->options[name] = std::min(number, 4096);
    } else if (const Shared channel = Channels::Find(fd)) {
      channel->options[name] = number;
    }
    return 0;
  });
}

RCSOCK_EXPORT int rgetsockopt(int fd, int level, int name, void* value,
                              socklen_t* length) {
  if (level != SOL_RDMA) return rcs_getsockopt(fd, level, name, value, length);
  int type = 0;
  socklen_t size = sizeof type;
  if (rcs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return -1;
  if (name < RDMA_SQSIZE || name > RDMA_IOMAPSIZE) return Fail(ENOTSUP);
  if (value == nullptr || length == nullptr) return Fail(EFAULT);
  if (*length < sizeof(int)) return Fail(EINVAL);
  const Shared channel = Channels::Find(fd);
  constexpr int kDefaults[4] = {384, 384, 64, 0};
  const int number =
      channel != nullptr ? channel->options[name].load() : kDefaults[name];
  std::memcpy(value, &number, sizeof number);
  *length = sizeof number;
  return 0;
}

RCSOCK_EXPORT int rfcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return rcs_fcntl(fd, command, argument);
}

// --- Direct placement

RCSOCK_EXPORT off_t riomap(int fd, void* buffer, size_t length, int protection,
                           int flags, off_t offset) {
  return Guarded([&]() -> off_t {
    Shared channel = ForData(fd);
    // As in raccept: whether the peer maps as well may be on its way.
    if (channel != nullptr && channel->phase() == Phase::kMaybe) {
      Shake(channel, 1000);
      channel = ForData(fd);
    }
    if (channel == nullptr || !channel->framed() || buffer == nullptr ||
        length == 0 || flags != 0 ||
        (protection & ~(PROT_WRITE | PROT_NONE)) != 0 || offset < -1) {
      // (The kernel's word for a descriptor that is no socket.)
      int type = 0;
      socklen_t size = sizeof type;
      return rcs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0
                 ? -1
                 : Fail(EINVAL);
    }
    // For local use alone nothing need be done.
    if ((protection & PROT_WRITE) == 0) return offset == -1 ? 0 : offset;
    int error = Channels::Start();
    if (error == 0) error = channel->Map(buffer, length, &offset);
    if (error != 0) return Fail(error);
    Channels::Pump();
    return offset;
  });
}

RCSOCK_EXPORT int riounmap(int fd, void* buffer, size_t length) {
  return Guarded([&] {
    const Shared channel = ForData(fd);
    if (channel == nullptr || !channel->framed()) return Fail(EINVAL);
    const int error = channel->Unmap(buffer, length);
    return error == 0 ? 0 : Fail(error);
  });
}

RCSOCK_EXPORT size_t riowrite(int fd, const void* from, size_t count,
                              off_t offset, int flags) {
  return static_cast<size_t>(Guarded([&]() -> ssize_t {
    const Shared channel = ForData(fd);
    if (channel == nullptr || !channel->framed() || offset < 0) {
      return Fail(EINVAL);
    }
    if (from == nullptr && count > 0) return Fail(EFAULT);
    const auto* bytes = static_cast<const char*>(from);
    return Repeat(fd, flags, count, [&](std::size_t done) -> ssize_t {
      const ssize_t n =
          channel->Write(bytes + done, count - done,
                         static_cast<std::uint64_t>(offset) + done);
      if (channel->owes() || channel->StartedPlacing()) Channels::Pump();
      return n;
    });
  }));
}
