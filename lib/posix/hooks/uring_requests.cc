#include "lib/posix/hooks/uring_requests.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>

#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/socket/sock_settings.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {
namespace {

constexpr std::uint16_t kPollFirst = 1u << 0;  // IORING_RECVSEND_POLL_FIRST

// Flags of messages that mean on a lane what they mean to the kernel.
constexpr std::uint32_t kReceiveFlags =
    MSG_PEEK | MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL | MSG_TRUNC;
constexpr std::uint32_t kSendFlags =
    MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL | MSG_MORE;
constexpr std::uint32_t kPollEvents = POLLIN | POLLOUT | POLLPRI | POLLERR |
                                      POLLHUP | POLLRDNORM | POLLWRNORM |
                                      POLLRDBAND | POLLWRBAND | POLLRDHUP;

bool Linked(const io_uring_sqe& from) {
  return (from.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK)) != 0;
}

bool ReadMessage(const io_uring_sqe& from, bool sends, Request* request) {
  const std::uint32_t flags = from.msg_flags;
  if ((flags & ~(sends ? kSendFlags : kReceiveFlags)) != 0 ||
      (from.ioprio & ~kPollFirst) != 0 || from.file_index != 0 ||
      from.addr2 != 0) {
    return false;
  }
  // A short transfer ends a chain of requests.
  if ((flags & MSG_WAITALL) != 0 &&
      (Linked(from) || (flags & (MSG_PEEK | MSG_TRUNC)) != 0 ||
       from.opcode == IORING_OP_SENDMSG || from.opcode == IORING_OP_RECVMSG)) {
    return false;
  }
  request->flags = flags;
  return true;
}

bool ReadVector(const io_uring_sqe& from, Request* request) {
  if (from.ioprio != 0 || from.rw_flags != 0 || Linked(from)) return false;
  request->flags = 0;
  return (from.opcode != IORING_OP_READV && from.opcode != IORING_OP_WRITEV) ||
         from.len <= IOV_MAX;
}

bool ReadPoll(const io_uring_sqe& from, Request* request) {
  if (from.len != 0 || from.ioprio != 0 || from.off != 0 || from.addr != 0 ||
      (from.poll32_events & ~kPollEvents) != 0) {
    return false;
  }
  request->flags = from.poll32_events;
  return true;
}

// The result of a call: bytes, or -errno.
int Result(ssize_t n) { return n >= 0 ? static_cast<int>(n) : -errno; }

int Receive(const Request& request, std::uint32_t flags) {
  auto* const to = reinterpret_cast<char*>(request.address);
  return Result(hook::recvfrom(
      request.fd, to + request.done, request.length - request.done,
      static_cast<int>(flags | MSG_DONTWAIT), nullptr, nullptr));
}
int Send(const Request& request, std::uint32_t flags) {
  const auto* const from = reinterpret_cast<const char*>(request.address);
  return Result(hook::sendto(
      request.fd, from + request.done, request.length - request.done,
      static_cast<int>(flags | MSG_DONTWAIT), nullptr, 0));
}

// Runs `part` again until all is done, if the request wants all.
template <class Part>
int Whole(Request* request, Part&& part) {
  const bool all = (request->flags & MSG_WAITALL) != 0;
  for (;;) {
    const int n = part(*request, request->flags & ~MSG_WAITALL);
    if (n == -EAGAIN) return n;
    if (n <= 0) {
      return request->done > 0 ? static_cast<int>(request->done) : n;
    }
    request->done += static_cast<std::uint32_t>(n);
    if (!all || request->done >= request->length) {
      return static_cast<int>(request->done);
    }
  }
}

int Vector(const Request& request, bool sends) {
  msghdr message{};
  message.msg_iov = reinterpret_cast<iovec*>(request.address);
  message.msg_iovlen = request.length;
  return Result(sends ? hook::sendmsg(request.fd, &message, MSG_DONTWAIT)
                      : hook::recvmsg(request.fd, &message, MSG_DONTWAIT));
}

int Message(const Request& request, bool sends) {
  auto* const message = reinterpret_cast<msghdr*>(request.address);
  const int flags = static_cast<int>(request.flags | MSG_DONTWAIT);
  return Result(sends ? hook::sendmsg(request.fd, message, flags)
                      : hook::recvmsg(request.fd, message, flags));
}

int Poll(const Request& request) {
  pollfd one{request.fd, static_cast<short>(request.flags), 0};
  const int n = hook::poll(&one, 1, 0);
  if (n == 0) return -EAGAIN;
  return n < 0 ? -errno : static_cast<std::uint16_t>(one.revents);
}

// Whether a connection of TCP has moved bytes that rcsock has not counted.
bool HasMoved(int fd) {
  struct tcp_info info {};
  int unread = 0;
  int unsent = 0;
  return AskTcpInfo(fd, &info) <
             offsetof(struct tcp_info, tcpi_bytes_received) + 8 ||
         ::syscall(SYS_ioctl, fd, FIONREAD, &unread) != 0 ||
         ::syscall(SYS_ioctl, fd, TIOCOUTQ, &unsent) != 0 || unsent != 0 ||
         info.tcpi_bytes_acked > 2 ||
         info.tcpi_bytes_received > static_cast<unsigned>(unread) + 2;
}

// Returns whether more bytes, or the end, follow what the kernel has given.
// The kernel reports this in the flags of a completion of a socket.
bool MoreFollows(int fd, int result) {
  int left = 0;
  if (result == 0) return true;
  if (hook::Ioctl(fd, FIONREAD, &left) != 0) return false;
  if (left > 0) return true;
  Sock* const sock = LookupSock(fd);
  // During a switch the ring's next message may be PROPOSE.
  return sock != nullptr && sock->OnLane() && Looks(sock).EndNext();
}

constinit std::atomic<bool> accepts{false};

// `fd` names a connected socket of TCP.
Sock* NewSock(int fd, stream::Role role) {
  const long status = ::syscall(SYS_fcntl, fd, F_GETFL);
  if (status < 0) return nullptr;
  Sock* const sock = Sock::New(role, (status & O_NONBLOCK) != 0);
  if (sock == nullptr) return nullptr;
  BeforeLooking();
  return sock;
}

}  // namespace

bool Read(const io_uring_sqe& from, Request* request) {
  request->opcode = from.opcode;
  request->fd = from.fd;
  request->address = from.addr;
  request->length = from.len;
  request->done = 0;
  switch (from.opcode) {
    case IORING_OP_SEND:
      return ReadMessage(from, true, request);
    case IORING_OP_RECV:
      return ReadMessage(from, false, request);
    case IORING_OP_RECVMSG:
      return from.len <= 1 && ReadMessage(from, false, request);
    case IORING_OP_SENDMSG: {
      // Control data and names are the kernel's business.
      msghdr copy;
      const auto* const message = reinterpret_cast<const msghdr*>(from.addr);
      BeforeLooking();
      return from.len <= 1 && !Null(message) &&
             base::TrySmall(&copy, message, sizeof copy) &&
             copy.msg_controllen == 0 && copy.msg_namelen == 0 &&
             ReadMessage(from, true, request);
    }
    case IORING_OP_READ:
    case IORING_OP_WRITE:
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
      return ReadVector(from, request);
    case IORING_OP_POLL_ADD:
      return ReadPoll(from, request);
    case IORING_OP_SHUTDOWN:
      return from.off == 0 && from.addr == 0 && from.rw_flags == 0 &&
             from.buf_index == 0 && from.file_index == 0 && from.ioprio == 0;
    case IORING_OP_CLOSE:
      return from.off == 0 && from.addr == 0 && from.len == 0 &&
             from.rw_flags == 0 && from.buf_index == 0 &&
             from.file_index == 0 && from.ioprio == 0;
    default:
      return false;
  }
}

int Attempt(Request* request, std::uint32_t* flags) {
  *flags = 0;
  int result;
  switch (request->opcode) {
    case IORING_OP_SEND:
      request->flags |= MSG_NOSIGNAL;
      return Whole(request, &Send);
    case IORING_OP_RECV:
      result = Whole(request, &Receive);
      break;
    case IORING_OP_READ:
      return Receive(*request, 0);
    case IORING_OP_WRITE:
      return Send(*request, 0);
    case IORING_OP_READV:
      return Vector(*request, false);
    case IORING_OP_WRITEV:
      return Vector(*request, true);
    case IORING_OP_SENDMSG:
      request->flags |= MSG_NOSIGNAL;
      return Message(*request, true);
    case IORING_OP_RECVMSG:
      result = Message(*request, false);
      break;
    case IORING_OP_POLL_ADD:
      return Poll(*request);
    case IORING_OP_SHUTDOWN:
      return Result(
          hook::shutdown(request->fd, static_cast<int>(request->length)));
    case IORING_OP_CLOSE:
      return Result(hook::close(request->fd));
    default:
      return -EINVAL;
  }
  constexpr std::uint32_t kNonEmpty = 1u << 2;  // IORING_CQE_F_SOCK_NONEMPTY
  if (result >= 0 && request->length > 0 && MoreFollows(request->fd, result)) {
    *flags = kNonEmpty;
  }
  return result;
}

bool NeverWaits(const Request& request) {
  return request.opcode != IORING_OP_POLL_ADD &&
         (request.flags & MSG_DONTWAIT) != 0;
}

std::uint32_t Awaits(const Request& request) {
  switch (request.opcode) {
    case IORING_OP_SEND:
    case IORING_OP_SENDMSG:
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
      return EPOLLOUT;
    case IORING_OP_POLL_ADD:
      return request.flags & ~(POLLERR | POLLHUP);
    default:
      return EPOLLIN;
  }
}

Sock* Carried(int fd) {
  if (Lookup(fd) == nullptr) {
    if (!accepts.load(std::memory_order_relaxed)) return nullptr;
    Discover(fd);
  }
  File* const file = Lookup(fd);
  if (file == nullptr || file->kind != FileKind::kSock) return nullptr;
  auto* const sock = static_cast<Sock*>(file);
  return sock->listening.load(std::memory_order_relaxed) ||
                 !Route(sock).MayBeCarried()
             ? nullptr
             : sock;
}

void BeforeConnect(const io_uring_sqe& request) {
  const int fd = request.fd;
  const auto length = static_cast<socklen_t>(request.off);
  const auto* const address = reinterpret_cast<const sockaddr*>(request.addr);
  const SockAt sock(fd);
  if (!sock) return;
  BeforeLooking();
  sockaddr_storage copy{};
  if (length > sizeof copy || Null(address) ||
      !base::TryGet(&copy, address, length) ||
      (copy.ss_family != AF_INET && copy.ss_family != AF_INET6) ||
      sock->listening.load(std::memory_order_relaxed)) {
    sock->way_back().Pin(base::Reason::kPinnedIoUring);
    return;
  }
  sock->peer().SetRole(stream::Role::kConnector);
  sock->peer().Set(fd, reinterpret_cast<const sockaddr*>(&copy), length);
  sock->search().Allow();
}

void BeforeAccept() { accepts.store(true, std::memory_order_relaxed); }

void Discover(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  if (fd < 0 || base::IsInternalFd(fd) || InBorrowedMemory() ||
      ::syscall(SYS_getpeername, fd, &peer, &length) != 0 ||
      (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) || !IsTcp(fd)) {
    return;
  }
  Sock* const sock = NewSock(fd, stream::Role::kAcceptor);
  if (sock == nullptr) return;
  sock->peer().Set(fd, reinterpret_cast<const sockaddr*>(&peer), length);
  Settings(sock).InheritFromUnknown(fd);
  sock->search().Allow();
  const bool moved = HasMoved(fd);
  Bind(fd, sock);
  if (const SockAt bound(fd); bound) {
    if (moved) {
      bound->way_back().Pin(base::Reason::kPinnedSyscall);
    } else {
      bound->search().BeginIfWorth();
    }
  }
}

}  // namespace rcsock::posix::uring
