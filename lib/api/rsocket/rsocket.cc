// librcsock_rsocket.so: the names of <rdma/rsocket.h>. A stream rsocket is a
// TCP stream of librcsock; a datagram rsocket is UDP.
//
// This file has connections, their options, and the memory that they map.

#include "lib/include/rcsock/rsocket.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "lib/api/rsocket/call.h"
#include "lib/api/rsocket/channels.h"
#include "lib/api/rsocket/wait.h"
#include "lib/include/rcsock/rcsock.h"

namespace rcsock::rsocket {

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
    // Beyond the numbers that are kept here it is a stream, and no more.
    if (channel == nullptr) return accepted;
    channel->Accepted(listener.get());
    // An end that is to map memory must know now whether its peer maps too. If
    // the peer maps, its hello is on its way.
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
    // As in raccept: the peer's hello may be on its way.
    if (channel != nullptr && channel->phase() == Phase::kMaybe) {
      Shake(channel, 1000);
      channel = ForData(fd);
    }
    if (channel == nullptr || !channel->framed() || buffer == nullptr ||
        length == 0 || flags != 0 ||
        (protection & ~(PROT_WRITE | PROT_NONE)) != 0 || offset < -1) {
      // The kernel's error for a descriptor that is no socket.
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

}  // namespace rcsock::rsocket
