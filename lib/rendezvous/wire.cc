#include "lib/rendezvous/wire.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rcsock::rendezvous {

bool Packet::ReadHeader(Header* header) const {
  if (length < sizeof *header) return false;
  std::memcpy(header, bytes, sizeof *header);
  return header->magic == kMagic && header->length == length;
}

namespace {

// Bypasses a sanitizer, which cannot see that a received descriptor moves to
// another number (RelocateHigh).
ssize_t RecvRaw(int fd, msghdr* message) {
  return ::syscall(SYS_recvmsg, fd, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
}

}  // namespace

Received Receive(int fd, Packet* packet) {
  // Room for all that a record can carry.  The kernel would close, in this
  // thread, descriptors that find no room.
  alignas(cmsghdr) char control[CMSG_SPACE(kMostReceived * sizeof(int))];
  iovec iov{packet->bytes, sizeof packet->bytes};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const base::LowNumber low;
  ssize_t n = RecvRaw(fd, &message);
  if (n < 0 && errno == ECONNRESET) {
    // The peer died before it had read all that this end sent.  The kernel says
    // this once, and before what the peer had sent.
    n = RecvRaw(fd, &message);
  }
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? Received::kNothing
                                             : Received::kEnd;
  }
  packet->length = static_cast<std::size_t>(n);
  packet->fd_count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      base::ForeignFd one(received);
      one.Hide();
      if (packet->fd_count < kMostReceived) {
        packet->fds[packet->fd_count++] = std::move(one);
      }
    }
  }
  if (n == 0 && packet->fd_count == 0) return Received::kEnd;
  const bool too_many = packet->fd_count > kMaxFds;
  if (too_many || (message.msg_flags & MSG_TRUNC)) return Received::kMalformed;
  // The control buffer had room, so this process's table has none.
  if (message.msg_flags & MSG_CTRUNC) {
    // The lanes do not need an allocation of a GPU: its bytes go by the ring.
    Header header;
    const bool memory =
        packet->ReadHeader(&header) && header.type == Type::kMemory;
    return memory ? Received::kPacket : Received::kNoFds;
  }
  return Received::kPacket;
}

int SendPacket(int fd, const void* bytes, std::size_t length, const int* fds,
               int fd_count) {
  iovec iov{const_cast<void*>(bytes), length};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  if (fd_count > 0) {
    const std::size_t size = static_cast<std::size_t>(fd_count) * sizeof(int);
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), fds, size);
  }
  ssize_t n;
  do {
    n = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n < 0 ? -errno : 0;
}

base::Reason ErrnoReason(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return base::Reason::kNoFds;
    case ENOMEM:
    case ENOSPC:
    case ENOBUFS:
    case EFBIG:  // RLIMIT_FSIZE: CreateMemory
      return base::Reason::kNoMemory;
    default:
      return base::Reason::kLaneError;
  }
}

base::Reason CheckedReason(std::uint32_t reason) {
  if (reason == 0 ||
      reason >= static_cast<std::uint32_t>(base::Reason::kCount)) {
    return base::Reason::kPeerRefused;
  }
  return static_cast<base::Reason>(reason);
}

}  // namespace rcsock::rendezvous
