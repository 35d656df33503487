// sendfile and splice.

#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/base/direct.h"
#include "lib/base/guard.h"
#include "lib/base/no_cancel.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/hooks_data.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::hook {
namespace {

// sendfile may refuse what read() can read, and errors differ.  It does not
// refuse a regular file with a size.  For other files, such as those of /proc,
// the kernel is asked by a call that sends nothing.  `got` bytes have been read
// from the file, and are put back.
[[gnu::cold]] bool RefusedBySendfile(int in, const off_t* offset, ssize_t got) {
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

// The buffer by which sendfile copies.  The stack of a thread or coroutine may
// be no larger than 16 KiB.  So few threads at a time have a large buffer, and
// the others use a small piece of their stack.  If handlers have jumped out of
// sendfile with the buffers, later threads use their stacks, too.
class SendBuffer {
 public:
  static constexpr std::size_t kLarge = 16384;
  static constexpr std::size_t kSmall = 2048;
  SendBuffer() {
    unsigned taken = taken_.load(std::memory_order_relaxed);
    while (taken != kAll) {
      const unsigned mine = ~taken & (taken + 1);  // the lowest free bit
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

// Splices bytes that were read ahead and are shared: the kernel does not have
// them.  Returns 0 if no such bytes are left.
ssize_t SpliceUnread(Sock* sock, int in, int out, size_t length,
                     unsigned flags) {
  std::size_t most = sock->read_ahead().Bytes();
  char piece[4096];  // any pipe with room takes this much at once
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

// The kernel sends from a stream to a pipe, as splice does, and to nothing
// else.  0: ask the kernel.
[[gnu::cold]] ssize_t SendfileFrom(Sock* sock, int in, int out, size_t count) {
  struct stat what {};
  if (::fstat(out, &what) != 0 || !S_ISFIFO(what.st_mode)) return 0;
  sock->way_back().Pin(base::Reason::kPinnedSyscall);
  return SpliceUnread(sock, in, out, count, 0);
}

// A call that sends a file to a stream.
struct Filing {
  Sock* sock;
  int out;
  int in;
  off_t* offset;
  std::size_t count;
  std::size_t done = 0;
  std::uint32_t signals = tls_signals.any;
  ssize_t result = 0;
};
enum Way { kOver, kOtherWay };

// Ends the call.  Returns what has been sent, or else the result of the last
// part.
Way Over(Filing& filing, ssize_t n) {
  filing.result = filing.done > 0 ? static_cast<ssize_t>(filing.done) : n;
  return kOver;
}

bool ByBuffer(Sock* sock) {
  return Engine(sock) || sock->send_gate().AwaitsLane();
}

// A stream that may still leave TCP does not stay in the kernel until all of a
// large file is sent: it could not be adopted, and would never leave TCP.  So
// the file is sent by parts.  If a lane is about to come, `send` sends the
// file, and may wait for the lane.
Way SendByKernel(Filing& filing) {
  constexpr std::size_t kPart = 64 << 10;
  Sock* const sock = filing.sock;
  while (!ByBuffer(sock)) {
    if (filing.done > 0) {
      const base::NoCancel no_cancel;  // sendfile is no cancellation point
      if (!GoesOn(filing.out, POLLOUT, filing.signals)) return Over(filing, 0);
    }
    const std::size_t left = filing.count - filing.done;
    const std::size_t part =
        sock->lane_state().MayLeaveTcp(LaneState::kWeak) && left > kPart ? kPart
                                                                         : left;
    bool raw = false;
    const ssize_t n = sock->Send(filing.out, nullptr, 0, 0, 0, [&] {
      raw = true;
      return real::sendfile(filing.out, filing.in, filing.offset, part);
    });
    if (!raw) continue;  // it was promoted a moment ago
    if (n < 0) return Over(filing, n);
    filing.done += static_cast<std::size_t>(n);
    // As in the kernel, a handler that has run ends a call that has sent.
    if (static_cast<std::size_t>(n) < part || filing.done == filing.count ||
        tls_signals.any != filing.signals) {
      return Over(filing, 0);
    }
  }
  return kOtherWay;
}

// Sends one piece.  Once other pieces have been sent, a handler ends the call
// where it would sleep.  *other: the stream has just come back to TCP, where
// the call goes on.
ssize_t SendPiece(const Filing& filing, const char* from, std::size_t length,
                  bool* other) {
  if (filing.done == 0) return send(filing.out, from, length, 0);
  Sock* const sock = filing.sock;
  if (Engine(sock)) {
    const ssize_t n = sock->QuickSend(StillAt(filing.out, sock), from, length);
    if (n != 0) return n;
  }
  const LaterPart later(filing.signals);
  const iovec iov{const_cast<char*>(from), length};
  return sock->Send(filing.out, &iov, 1, length, Sock::kLater, [&] {
    *other = true;
    return direct::send(filing.out, from, length, MSG_DONTWAIT);
  });
}

// Without an offset, a file that cannot seek back is refused, as the kernel
// refuses it.  With an offset, pread refuses it.
bool SeeksBack(int in) {
  struct stat what {};
  if (::fstat(in, &what) != 0) return false;
  if (S_ISFIFO(what.st_mode) || S_ISSOCK(what.st_mode)) {
    errno = EINVAL;
    return false;
  }
  return true;
}

// Sends by a buffer, since the page cache cannot be mapped into a ring.  The
// next turn reads again what the stream did not take; only the offset counts.
// sendfile is no cancellation point and throws nothing, so no thread is unwound
// here.
Way SendByBuffer(Filing& filing) {
  Sock* const sock = filing.sock;
  const int in = filing.in;
  off_t* const offset = filing.offset;
  if (offset == nullptr && !SeeksBack(in)) return Over(filing, -1);
  const base::NoCancel no_cancel;
  char small[SendBuffer::kSmall];
  const SendBuffer large;
  char* const piece = large.at() != nullptr ? large.at() : small;
  const std::size_t most =
      large.at() != nullptr ? SendBuffer::kLarge : sizeof small;
  while (filing.done < filing.count) {
    // No lane has come, or it has gone.  The kernel needs no buffer.
    if (!ByBuffer(sock)) return kOtherWay;
    const std::size_t want = std::min(filing.count - filing.done, most);
    const ssize_t got = offset != nullptr ? ::pread(in, piece, want, *offset)
                                          : direct::read(in, piece, want);
    if (filing.done == 0 && got < static_cast<ssize_t>(want) &&
        RefusedBySendfile(in, offset, got)) {
      return Over(filing, -1);
    }
    if (got <= 0) return Over(filing, got);
    bool other = false;
    const ssize_t sent =
        SendPiece(filing, piece, static_cast<std::size_t>(got), &other);
    const int saved = errno;
    const ssize_t taken = sent > 0 ? sent : 0;
    if (offset != nullptr) {
      if (!base::TryStore(offset, *offset + taken)) {
        filing.result = Faulted(0);
        return kOver;
      }
    } else if (taken < got) {
      ::lseek(in, taken - got, SEEK_CUR);
    }
    filing.done += static_cast<std::size_t>(taken);
    errno = saved;
    if (sent < got && other && (sent >= 0 || saved == EAGAIN)) {
      if (!sock->nonblock.load(std::memory_order_relaxed) &&
          GoesOn(filing.out, POLLOUT, filing.signals)) {
        continue;
      }
      break;
    }
    if (sent < got ||
        (filing.done < filing.count && (sock->send_gate().SendsParts() ||
                                        tls_signals.any != filing.signals))) {
      return Over(filing, -1);
    }
  }
  return Over(filing, 0);
}

}  // namespace

ssize_t sendfile(int out, int in, off_t* offset, size_t count) {
  Sock* sock = LookupSock(out);
  if (sock == nullptr && offset == nullptr && count != 0 && !Negative(count)) {
    if (Sock* const from = LookupSock(in)) {
      const ssize_t n = SendfileFrom(from, in, out, count);
      if (n != 0) return n;
    }
  }
  if (sock == nullptr || count == 0 || Negative(count) || Astray(offset) ||
      (offset != nullptr && !base::Readable(offset, sizeof *offset))) {
    return real::sendfile(out, in, offset, count);
  }
  if (count > kMostMoved) [[unlikely]] {
    // If the range is too long for the file's position, the kernel refuses it
    // before it looks at the target.
    if (real::sendfile(-1, in, offset, count) < 0 && errno == EINVAL) return -1;
    count = kMostMoved;
  }
  Filing filing{sock, out, in, offset, count};
  // The stream may move between the two ways meanwhile, and back.
  while (SendByKernel(filing) == kOtherWay &&
         SendByBuffer(filing) == kOtherWay) {
  }
  return filing.result;
}

ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) {
  static_assert(sizeof(off64_t) == sizeof(off_t));
  return sendfile(out, in, offset, count);
}

ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset,
               size_t length, unsigned flags) {
  if (Sock* sock = LookupSock(in)) {
    sock->way_back().Pin(base::Reason::kPinnedSyscall);
    if (in_offset == nullptr && out_offset == nullptr) {
      const ssize_t n = SpliceUnread(sock, in, out, length, flags);
      if (n != 0) return n;
    }
  }
  if (const SockAt sock(out); sock)
    sock->way_back().Pin(base::Reason::kPinnedSyscall);
  return real::splice(in, in_offset, out, out_offset, length, flags);
}

}  // namespace rcsock::posix::hook
