// The calls that send and receive data, by the channel or by the stream itself.

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <vector>

#include "lib/api/rsocket/call.h"
#include "lib/api/rsocket/channels.h"
#include "lib/api/rsocket/wait.h"
#include "lib/include/rcsock/rcsock.h"
#include "lib/include/rcsock/rsocket.h"

namespace rcsock::rsocket {

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

namespace {

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
        // What follows a hello does not come before the hello.
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

// Returns the channel by which a send on the stream must go; null: the stream.
Shared ForSend(int fd) {
  Shared channel = ForData(fd);
  if (channel == nullptr || channel->framed()) return channel;
  // An acceptor that speaks first does so in plain bytes. A hello that comes
  // after that is dropped.
  if (channel->phase() == Phase::kMaybe) channel->SpeakFirst();
  return channel->framed() || channel->handshaking() ? channel : nullptr;
}

}  // namespace

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

}  // namespace rcsock::rsocket
