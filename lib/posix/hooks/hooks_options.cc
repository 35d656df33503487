// What the program asks and sets on a descriptor: fcntl, ioctl, options.

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/given.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/sock_answers.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_settings.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/sys/user_arguments.h"

namespace rcsock::posix::hook {
namespace {

// After these options nothing of the way back to TCP may come through.
bool Blinds(int level, int name) {
  return (level == SOL_SOCKET &&
          (name == SO_ATTACH_FILTER || name == SO_ATTACH_BPF)) ||
         (level == IPPROTO_TCP && name == TCP_REPAIR);
}

// Whether SO_MAX_PACING_RATE, with 8 bytes or 4, sets no rate.
bool Unpaced(const void* value, socklen_t length) {
  std::uint64_t rate = 0;
  std::memcpy(&rate, value, length < sizeof rate ? 4 : sizeof rate);
  return rate == (length < sizeof rate ? ~std::uint32_t{0} : ~std::uint64_t{0});
}

// Stores it where the program wants it.  Returns 0, or -1 with errno.
int Put(void* to, const void* from, std::size_t length) {
  if (length == 0 || (!Null(to) && base::TryPut(to, from, length))) return 0;
  errno = EFAULT;
  return -1;
}

// A change of a socket's status flags.  While a thread makes one, and for good
// after two at once or one that sets more than O_NONBLOCK, the kernel alone
// knows the flags.
class StatusChange {
 public:
  explicit StatusChange(Sock* sock)
      : sock_(sock), known_(sock->status_known.exchange(kChanging)) {
    if (known_ == kChanging || known_ == 0) SetMore();
  }
  ~StatusChange() {
    std::uint32_t changing = kChanging;
    if (known_ != 0) {
      sock_->status_known.compare_exchange_strong(changing, known_);
    }
  }
  StatusChange(const StatusChange&) = delete;
  StatusChange& operator=(const StatusChange&) = delete;
  void Nonblock(bool on) { sock_->nonblock.store(on); }
  void SetMore() {
    known_ = 0;
    sock_->status_known.store(0);
  }

 private:
  static constexpr std::uint32_t kChanging = ~std::uint32_t{0};
  Sock* const sock_;
  std::uint32_t known_;
};

// Returns the status flags of a socket, or -1 if only the kernel knows them.
[[gnu::hot]] int KnownStatus(int fd) {
  File* const file = Entry(fd);
  if (file == nullptr || file->kind != FileKind::kSock) return -1;
  const auto* const sock = static_cast<const Sock*>(file);
  const std::uint32_t known = sock->status_known.load();
  const bool nonblock = sock->nonblock.load();
  // The number may have been closed since, and a change have begun.
  if (known == 0 || known != TableCopies() || !AllCallsSeen() ||
      Entry(fd) != file || sock->status_known.load() != known) {
    return -1;
  }
  return O_RDWR | (nonblock ? O_NONBLOCK : 0);
}

// F_SETFL.
[[gnu::hot]] int SetStatus(int fd, long flags) {
  const SockAt sock(fd);
  if (!sock) return RCSOCK_REAL(fcntl)(fd, F_SETFL, flags);
  StatusChange change(sock.get());
  const int result = RCSOCK_REAL(fcntl)(fd, F_SETFL, flags);
  if (result < 0) return result;
  const int saved = errno;
  change.Nonblock((flags & O_NONBLOCK) != 0);
  constexpr long kMore = O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME;
  if ((flags & kMore) != 0) change.SetMore();
  if ((flags & O_ASYNC) != 0) {
    sock->way_back().Pin(base::Reason::kPinnedOption);
  }
  errno = saved;
  return result;
}

}  // namespace

[[gnu::hot]] int Fcntl(int fd, int command, long argument) {
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) &&
      Entry(fd) != nullptr && !base::tls_internal && !InBorrowedMemory()) {
    const HeldNumber held(fd);
    const int copy = RCSOCK_REAL(fcntl)(fd, command, argument);
    if (copy >= 0) CopyHeld(held, copy);
    return copy;
  }
  if (command == F_GETFL && !base::tls_internal) {
    if (const int known = KnownStatus(fd); known >= 0) return known;
  } else if (command == F_SETFL && !base::tls_internal) {
    return SetStatus(fd, argument);
  }
  const int result = RCSOCK_REAL(fcntl)(fd, command, argument);
  if (result < 0 || base::tls_internal) return result;
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) &&
      Entry(fd) == nullptr && !InBorrowedMemory()) {
    Evict(result);
  }
  return result;
}

int Ioctl(int fd, unsigned long request, void* argument) {
  const SockAt sock(fd);
  if (sock && !sock->listening.load(std::memory_order_relaxed)) {
    int bytes = 0;
    if ((request == FIONREAD && Answers(sock.get()).Readable(&bytes)) ||
        ((request == SIOCOUTQ || request == SIOCOUTQNSD) &&
         Answers(sock.get()).Unsent(request == SIOCOUTQNSD, &bytes))) {
      return Put(argument, &bytes, sizeof bytes);
    }
  }
  BeforeGivingIoctl(request, argument);
  std::optional<StatusChange> change;
  if (sock && (request == FIONBIO || request == FIOASYNC)) {
    change.emplace(sock.get());
  }
  const int result = RCSOCK_REAL(ioctl)(fd, request, argument);
  if (sock && result == 0) {
    if (request == SIOCATMARK) {
      // Bytes that were read ahead lie before the mark.
      int* const at = static_cast<int*>(argument);
      if (*at != 0 && Answers(sock.get()).HasReadAhead()) *at = 0;
    } else if (request == FIONBIO) {
      change->Nonblock(*static_cast<int*>(argument) != 0);
    } else if (request == FIOASYNC && *static_cast<int*>(argument) != 0) {
      change->SetMore();
      sock->way_back().Pin(base::Reason::kPinnedOption);
    }
  }
  return result;
}

// libc's sockatmark makes the ioctl by a call of its own.
int sockatmark(int fd) {
  int at = 0;
  return Ioctl(fd, SIOCATMARK, &at) < 0 ? -1 : at;
}

int getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  socklen_t room = 0;
  if (level == IPPROTO_TCP && !Null(length) && base::TryLoad(length, &room) &&
      static_cast<int>(room) >= 0) {
    const SockAt sock(fd);
    int kept = 0;
    if (sock && sock->options().Kept(name, &kept)) {
      room = std::min<socklen_t>(room, sizeof kept);
      // Without room nothing is written, so any address is right.
      return Put(length, &room, sizeof room) != 0 ? -1
                                                  : Put(value, &kept, room);
    }
    // TCP_ZEROCOPY_RECEIVE moves bytes of the stream.
    if (sock && name == TCP_ZEROCOPY_RECEIVE) sock->way_back().PinByOption();
  }
  const int result = real::getsockopt(fd, level, name, value, length);
  if (result != 0) return result;
  if (level == SOL_SOCKET && name == SO_ERROR) {
    // The kernel's error is the anchor's.  The stream may have an error of its
    // own, equal or not.  Each of the two is reported once.
    int error = 0;
    const SockAt sock(fd);
    if (sock && sock->mode() != Mode::kPlain) {
      const std::size_t told = std::min<std::size_t>(*length, sizeof error);
      std::memcpy(&error, value, told);
      const int own = Answers(sock.get()).TakeError();
      if (error == 0) error = own;
      std::memcpy(value, &error, told);
    }
  } else if (level == IPPROTO_TCP && name == TCP_INFO && *length > 0) {
    static_assert(offsetof(struct tcp_info, tcpi_state) == 0);
    const SockAt sock(fd);
    if (sock && sock->mode() == Mode::kEngine) {
      auto* const state = static_cast<std::uint8_t*>(value);
      *state = Answers(sock.get()).TcpState(*state);
    }
  }
  return result;
}

// Asks the kernel before it looks at its arguments, as the kernel does.  If TCP
// knows that the connection is over, the kernel reports that.
int getpeername(int fd, sockaddr* address, socklen_t* length) {
  {
    const SockAt sock(fd);
    if (sock && sock->mode() == Mode::kEngine &&
        Answers(sock.get()).TcpState(TCP_ESTABLISHED) == TCP_CLOSE) {
      errno = ENOTCONN;
      return -1;
    }
  }
  return real::getpeername(fd, address, length);
}

namespace {

// TCP_CORK and TCP_NODELAY of a stream on a lane.  Returns true if the stream
// keeps the option itself.
bool Keeps(Sock* sock, int level, int name, const void* value,
           socklen_t length) {
  if (level != IPPROTO_TCP || Null(value) ||
      static_cast<int>(length) < static_cast<int>(sizeof(int)) ||
      sock->mode() != Mode::kEngine) {
    return false;
  }
  int number;
  return base::TryGet(&number, value, sizeof number) &&
         sock->options().Keep(name, number != 0, sock->anchor());
}

void StoreTimeout(Sock* sock, bool receive, const void* value,
                  socklen_t length) {
  if (length < static_cast<socklen_t>(sizeof(timeval))) return;
  timeval time;
  std::memcpy(&time, value, sizeof time);
  (receive ? sock->rcv_timeout_ns : sock->snd_timeout_ns)
      .store(TimeoutNs(time));
}

// The kernel has set an option of SOL_SOCKET, to `number` if it is a number.
void AfterSocketOption(Sock* sock, int name, int number, const void* value,
                       socklen_t length) {
  switch (name) {
    case SO_RCVTIMEO:
    case SO_SNDTIMEO:
    case SO_RCVTIMEO_NEW:
    case SO_SNDTIMEO_NEW:
      StoreTimeout(sock, name == SO_RCVTIMEO || name == SO_RCVTIMEO_NEW, value,
                   length);
      break;
    case SO_SNDBUF:
    case SO_SNDBUFFORCE:
      Settings(sock).BoundSends();
      break;
    case SO_RCVLOWAT:  // a negative mark is all that there is room for
      if (number > 1 || number < 0) sock->way_back().PinByOption();
      break;
    case SO_ZEROCOPY:
      sock->zero_copy().Set(number != 0);
      break;
    case SO_TIMESTAMP:
    case SO_TIMESTAMPNS:
      // Each replaces the other.
      sock->ancillary().Set(Ancillary::kTime, number != 0);
      break;
    case SO_TIMESTAMPING:
    case SO_TIMESTAMP_NEW:
    case SO_TIMESTAMPNS_NEW:
    case SO_TIMESTAMPING_NEW:
      if (number != 0) sock->way_back().PinByOption();
      break;
    case SO_MAX_PACING_RATE:  // ~0: no rate; a rate is to be kept
      if (!Unpaced(value, length)) sock->way_back().PinByOption();
      break;
    case SO_PEEK_OFF:  // -1 is no offset
      if (number >= 0) sock->way_back().PinByOption();
      break;
    default:
      break;
  }
}

// Whether an option changes nothing that a socket is ready for.  Some do, and
// wake nobody (SO_OOBINLINE, SO_RCVBUF): the next EPOLL_CTL_MOD finds that.
bool IsHarmless(int level, int name) {
  if (level == IPPROTO_TCP) {
    switch (name) {
      case TCP_NODELAY:
      case TCP_QUICKACK:
      case TCP_KEEPIDLE:
      case TCP_KEEPINTVL:
      case TCP_KEEPCNT:
      case TCP_USER_TIMEOUT:
        return true;
      default:
        return false;
    }
  }
  if (level != SOL_SOCKET) return false;
  switch (name) {
    case SO_REUSEADDR:
    case SO_REUSEPORT:
    case SO_KEEPALIVE:
    case SO_LINGER:
    case SO_PRIORITY:
    case SO_RCVTIMEO:
    case SO_SNDTIMEO:
      return true;
    default:
      return false;
  }
}

}  // namespace

[[gnu::hot]] int setsockopt(int fd, int level, int name, const void* value,
                            socklen_t length) {
  const SockAt sock(fd);
  if (sock && !IsHarmless(level, name)) sock->status_known.store(0);
  if (sock && Blinds(level, name)) sock->way_back().PinByOption();
  if (sock && Keeps(&*sock, level, name, value, length)) return 0;
  const int result = real::setsockopt(fd, level, name, value, length);
  if (!sock || result != 0) return result;
  int number = 0;
  if (value != nullptr && length >= static_cast<socklen_t>(sizeof number)) {
    std::memcpy(&number, value, sizeof number);
  }
  if (level == SOL_SOCKET) {
    AfterSocketOption(&*sock, name, number, value, length);
  } else if (level == IPPROTO_TCP && name == TCP_INQ) {
    sock->ancillary().Set(Ancillary::kLeft, number != 0);
  } else if (level == IPPROTO_TCP && name == TCP_ULP) {
    sock->way_back().PinByOption();
  }
  return result;
}

}  // namespace rcsock::posix::hook
