// The calls of a stream that the engine owns: sending and receiving.

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "lib/base/real.h"
#include "lib/posix/iov_rest.h"
#include "lib/posix/process.h"
#include "lib/posix/recv_in_place.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/table.h"
#include "lib/posix/user_arguments.h"

namespace rcsock::posix {

void RaiseSigpipe() {
  const int saved = errno;
  const long pid = ::syscall(SYS_getpid);
  const long tid = ::syscall(SYS_gettid);
  // As the kernel says it: by kill(), not by tkill().
  siginfo_t info{};
  info.si_signo = SIGPIPE;
  info.si_code = SI_USER;
  info.si_pid = static_cast<pid_t>(pid);
  info.si_uid = static_cast<uid_t>(::syscall(SYS_getuid));
  if (::syscall(SYS_rt_tgsigqueueinfo, pid, tid, SIGPIPE, &info) != 0) {
    ::syscall(SYS_tgkill, pid, tid, SIGPIPE);
  }
  errno = saved;
}

namespace {

// `call(message)` for all from `skip` on; only so many pieces of a long vector
// go into one.  What it says in the end, if that is an error, is in *error.
template <class Call>
ssize_t ForRest(const iovec* iov, int count, std::size_t skip, int* error,
                Call&& call) {
  ssize_t done = 0;
  for (;;) {
    IovRest rest(iov, count);
    rest.Skip(skip + static_cast<std::size_t>(done));
    const std::size_t wanted = rest.total();
    if (wanted == 0) return done;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(rest.iov());
    message.msg_iovlen = static_cast<std::size_t>(rest.count());
    const ssize_t n = call(&message);
    if (n < 0) *error = errno;
    if (n <= 0) return done > 0 ? done : n;
    done += n;
    if (static_cast<std::size_t>(n) < wanted) return done;
  }
}

bool AtMarkOf(int fd) {
  int at = 0;
  return ::syscall(SYS_ioctl, fd, SIOCATMARK, &at) == 0 && at != 0;
}

}  // namespace

ssize_t Sock::SendRest(int fd, const iovec* iov, int count, std::size_t skip,
                       int flags) {
  int error = 0;
  const ssize_t n =
      ForRest(iov, count, skip, &error, [&](const msghdr* message) {
        // The call has sent something, which is its result: no signal.
        return real::sendmsg(fd, message, (flags & ~kLater) | MSG_NOSIGNAL);
      });
  if (error != 0) KeepError(fd, error);
  return n;
}

ssize_t Sock::RecvRest(int fd, const iovec* iov, int count, std::size_t skip,
                       int flags) {
  if (AtMarkOf(fd)) return 0;
  int error = 0;
  const ssize_t n = ForRest(iov, count, skip, &error, [&](msghdr* message) {
    return real::recvmsg(fd, message, flags);
  });
  if (error != 0) KeepError(fd, error);
  return n;
}

// (Of a stream on TCP it is kept as what lies behind bytes read ahead: with
// none of these.)
void Sock::KeepError(int fd, int error) {
  if (!stream::IsToldOnce(error)) return;
  CancelSeek();
  Latched latched(this);
  if (!IsAt(fd)) return;
  switch (mode()) {
    case Mode::kEngine:
      stream_->KeepError(error);
      HandleChanges();
      return;
    case Mode::kUnread:
      unread_.KeepError(error);
      return;
    case Mode::kPlain:
      if (unread_.Make(nullptr, 0, SocketInode(fd), 0, error)) {
        BecomeUnread();
      }
  }
}

// --- stream::Anchor

// The end of TCP is not the end of the stream while this end does not have the
// lane yet that both have agreed upon: the peer may have had it, put its last
// bytes into it, and died.  Its word that it has it is in a queue of the
// conductor's by then, so the wait is a short one; the kernel will say again
// that this is the end.  (A reset is not held: the kernel loses what it has not
// delivered by then, too, see killed_with_unread in tests/posix/kills.  Nor is
// an end that comes before this end has said that it has adopted the stream,
// which may take longer: then the peer does not have the lane.)
bool Sock::HoldsEnd() const {
  return lane_ == nullptr && lane_state_.Agreed() && !moves.load();
}

// (Below: a stream that is closed may have no number any more, a moment before
// the end of it is said.  Who finds it so comes back then, and finds what the
// number names that he has.)

ssize_t Sock::Send(const iovec* iov, int count) {
  if (fd() < 0) return -EAGAIN;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(iov);
  message.msg_iovlen =
      static_cast<std::size_t>(count < IOV_MAX ? count : IOV_MAX);
  const long n =
      ::syscall(SYS_sendmsg, fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return n >= 0 ? n : -errno;
}

ssize_t Sock::Recv(void* to, std::size_t length) {
  if (fd() < 0) return -EAGAIN;
  rx_latch.AssertHeld();
  const long n = Tells(kTellsTime) ? RecvStamped(to, length)
                                   : ::syscall(SYS_recvfrom, fd(), to, length,
                                               MSG_DONTWAIT, nullptr, nullptr);
  if (n == 0 && HoldsEnd()) return -EAGAIN;
  if (n > 0 && stream_->rx() == stream::Rx::kRaw) {
    anchor_rx_ += static_cast<std::uint64_t>(n);
  }
  return n >= 0 ? n : -errno;
}

ssize_t Sock::RecvV(const iovec* iov, int count, bool peek) {
  if (fd() < 0) return -EAGAIN;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(iov);
  message.msg_iovlen =
      static_cast<std::size_t>(count < IOV_MAX ? count : IOV_MAX);
  rx_latch.AssertHeld();
  const long n = ::syscall(SYS_recvmsg, fd(), &message,
                           MSG_DONTWAIT | (peek ? MSG_PEEK : 0));
  if (n == 0 && HoldsEnd()) return -EAGAIN;
  if (n > 0 && !peek) anchor_rx_ += static_cast<std::uint64_t>(n);
  return n >= 0 ? n : -errno;
}

int Sock::ShutdownWrite() {
  return ::syscall(SYS_shutdown, fd(), SHUT_WR) == 0 ? 0 : -errno;
}

bool Sock::AtMark() { return AtMarkOf(fd()); }

Sock* Sock::LookupHere(int fd) { return LookupSock(fd); }

// A child of fork gives all its connections another life; the sleep that a
// handler has interrupted, which then forked, goes on there for the same one.
bool Sock::GoneSinceToo(Wait& wait, int fd) const {
  if (wait.process == OwnPid() || !IsAt(fd)) return true;
  wait.process = OwnPid();
  wait.life = Life();
  return false;
}

// --- Sending

ssize_t Sock::EngineSend(int fd, const iovec* iov, int count, std::size_t total,
                         int flags, std::size_t* done) {
  Critical critical;
  tx_latch.lock();
  CheckQuick();
  // The common case, without what waiting needs.
  if (*done == 0 && IsAt(fd) && mode() == Mode::kEngine && stream_->FastTx())
      [[likely]] {
    const ssize_t n = stream_->Write(iov, count, total);
    if (n > 0) {
      lane_tx_ += static_cast<std::uint64_t>(n);
      if (static_cast<std::size_t>(n) == total) [[likely]] {
        tx_latch.unlock();
        return n;
      }
      *done = static_cast<std::size_t>(n);
    }
  }
  if (AwaitsAnswer()) [[unlikely]] {
    tx_latch.unlock();
    LookForAnswer();
    const ssize_t n = HeldSend(fd, iov, count, total, flags, done);
    if (n != kRetry) return n;
    tx_latch.lock();
  }
  return SendLatched(fd, iov, count, total, flags, done);
}

ssize_t Sock::SendLatched(int fd, const iovec* iov, int count,
                          std::size_t total, int flags, std::size_t* done) {
  if (!IsAt(fd)) [[unlikely]] {
    tx_latch.unlock();
    return kGone;
  }
  const bool block =
      (flags & MSG_DONTWAIT) == 0 && !nonblock.load(std::memory_order_relaxed);
  Wait wait{.life = Life(), .process = OwnPid()};
  IovRest rest(iov, count);
  ssize_t n;
  for (;;) {  // the tx latch is held
    if (mode() != Mode::kEngine) {
      tx_latch.unlock();
      return kRetry;
    }
    const std::uint32_t seq = tx_seq_.load(std::memory_order_seq_cst);
    std::size_t left = total;
    if (*done != 0) {
      rest.Skip(*done);
      left = rest.total();
    }
    n = -EAGAIN;
    if (stream_->FastTx()) {
      n = stream_->Write(rest.iov(), rest.count(), left);
      if (n > 0) lane_tx_ += static_cast<std::uint64_t>(n);
    }
    if (n == -EAGAIN &&
        (!stream_->FastTx() || lane_->State() != base::Reason::kNone)) {
      rx_latch.lock();
      if (stream_->FastTx()) stream_->Progress();  // a dead lane
      n = stream_->Write(rest.iov(), rest.count(), left);
      if (n > 0 && stream_->tx() != stream::Tx::kRaw) {
        lane_tx_ += static_cast<std::uint64_t>(n);
      }
      if (n < 0 && *done > 0) stream_->KeepError(static_cast<int>(-n));
      // After a part as after nothing: who waits for the rest (or for the edge)
      // must be told when TCP takes more.
      if ((n == -EAGAIN || (n > 0 && static_cast<std::size_t>(n) < left)) &&
          stream_->tx() == stream::Tx::kRaw && !stream_->AwaitsRaw()) {
        tx_wait_ = true;
      }
      HandleChanges();
      if (lane_ == nullptr && n > 0 && stream_->Idle() &&
          !lane_state_.Seeking()) {
        PostSettle();
      }
      rx_latch.unlock();
    }
    if (n > 0) *done += static_cast<std::size_t>(n);
    if ((*done == total && n >= 0) || (n < 0 && n != -EAGAIN)) break;
    if (!block) {
      if (!stream_->FastTx()) break;
      if (lane_->Writable() > 0 && n > 0) continue;
      WatchStarved();
      break;
    }
    // TCP took a part: only its EAGAIN makes somebody watch for room.
    if (n > 0 && !stream_->FastTx()) continue;
    wait.part = *done > 0 || (flags & kLater) != 0;
    wait.later = (flags & kLater) != 0;
    const int w = WaitTx(wait, seq);
    if (GoneSince(wait, fd)) [[unlikely]] {
      tx_latch.unlock();
      return kGone;
    }
    if (w != 0) {
      if (w == kLeft) [[unlikely]] {
        tx_latch.unlock();
        return kLeft;
      }
      n = w;
      break;
    }
  }
  tx_latch.unlock();
  if (*done > 0 || n == 0) return static_cast<ssize_t>(*done);
  if (n == -EPIPE && (flags & MSG_NOSIGNAL) == 0) RaiseSigpipe();
  errno = static_cast<int>(-n);
  return -1;
}

ssize_t Sock::SendNull(int fd, int flags, std::size_t* done) {
  const ssize_t n = EngineSend(fd, nullptr, 0, 0, flags, done);
  if (n < 0) return n;
  errno = EFAULT;
  return -1;
}

ssize_t Sock::RecvNull(int fd, const iovec* iov, int count, int flags,
                       std::size_t* done) {
  // Only what would be put there is a fault, and there nothing is taken.
  std::size_t room = 0;
  int good = 0;
  for (; good < count && !Null(iov + good, 1); ++good) {
    room += iov[good].iov_len;
  }
  char byte;
  const iovec one{&byte, 1};
  const int looks = (flags & ~MSG_WAITALL) | MSG_PEEK;
  ssize_t n = 1;
  if (mode() == Mode::kEngine) {
    n = room == 0
            ? EngineRecv(fd, &one, 1, 1, looks, done)
            : EngineRecv(fd, nullptr, 0, room + 1, looks | MSG_TRUNC, done);
  }
  if (n <= 0) return n;
  *done = 0;
  if (static_cast<std::size_t>(n) <= room) {
    return EngineRecv(fd, iov, good, room, flags & ~MSG_WAITALL, done);
  }
  errno = EFAULT;
  return -1;
}

// --- Receiving

ssize_t Sock::EngineRecv(int fd, const iovec* iov, int count, std::size_t total,
                         int flags, std::size_t* done) {
  if (flags & MSG_OOB) [[unlikely]] {
    Pin(base::Reason::kPinnedOption);
    return kRetry;
  }
  Critical critical;
  rx_latch.lock();
  CheckQuick();
  // As in EngineSend.
  constexpr int kSpecial = MSG_PEEK | MSG_WAITALL | MSG_TRUNC;
  if ((flags & kSpecial) == 0 && *done == 0 && IsAt(fd) &&
      mode() == Mode::kEngine && stream_->FastRx()) [[likely]] {
    const ssize_t n = stream_->Read(iov, count, total, false);
    if (n > 0) [[likely]] {
      lane_rx_ += static_cast<std::uint64_t>(n);
      rx_latch.unlock();
      return n;
    }
  }
  if (AwaitsAnswer()) [[unlikely]] {
    rx_latch.unlock();
    LookForAnswer();
    rx_latch.lock();
  }
  return RecvLatched(fd, iov, count, total, flags, done);
}

ssize_t Sock::RecvLatched(int fd, const iovec* iov, int count,
                          std::size_t total, int flags, std::size_t* done) {
  if (!IsAt(fd)) [[unlikely]] {
    rx_latch.unlock();
    if ((flags & MSG_PEEK) != 0) *done = 0;
    return kGone;
  }
  const bool block =
      (flags & MSG_DONTWAIT) == 0 && !nonblock.load(std::memory_order_relaxed);
  // As TCP, a recv of nothing waits until there is something.
  char first;
  const iovec look{&first, 1};
  const bool nothing = total == 0;
  if (nothing) {
    iov = &look;
    count = 1;
    total = 1;
    flags |= MSG_PEEK;
    flags &= ~MSG_TRUNC;
  }
  const bool peek = (flags & MSG_PEEK) != 0;
  const bool all = (flags & MSG_WAITALL) != 0;
  const bool drop = (flags & MSG_TRUNC) != 0;
  bool last_look = false;
  Wait wait{.life = Life(), .process = OwnPid()};
  RecvInPlace in_place(this);
  IovRest rest(iov, count);
  ssize_t n;
  for (;;) {  // the rx latch is held
    if (mode() != Mode::kEngine) {
      rx_latch.unlock();
      if (peek) *done = 0;
      return kRetry;
    }
    const std::uint32_t seq = rx_seq_.load(std::memory_order_seq_cst);
    std::size_t left = total;
    if (*done != 0 && !peek) {
      rest.Skip(*done);
      left = rest.total();
    }
    const iovec* to = drop ? nullptr : rest.iov();
    const int pieces = drop ? 0 : rest.count();
    const bool lends = block && !peek && !drop;
    if (all && lends) in_place.Begin(to, left, true);
    n = -EAGAIN;
    if (stream_->FastRx()) {
      n = stream_->Read(to, pieces, left, peek);
      if (n > 0 && !peek) lane_rx_ += static_cast<std::uint64_t>(n);
    }
    // Pending and yet no data: a control message, which no honest peer sends
    // now, and which is Progress's to take; nothing behind it can be read
    // before.
    if (n == -EAGAIN && (!stream_->FastRx() || lane_->RxPendingQuick() ||
                         lane_->State() != base::Reason::kNone)) {
      // (Between two sleeps, it is in the call all the same.)
      if (wait.timed) rx_sleepers_.fetch_add(1, std::memory_order_relaxed);
      rx_latch.unlock();
      tx_latch.lock();
      rx_latch.lock();
      if (wait.timed) {
        const bool joins = JoinsLeft(wait, 0);
        rx_sleepers_.fetch_sub(1, std::memory_order_relaxed);
        if (joins) [[unlikely]] {
          rx_latch.unlock();
          tx_latch.unlock();
          if (peek) *done = 0;
          return kLeft;
        }
      }
      // (Nor is a stream that has been closed meanwhile at its end: there may
      // be bytes that a look has shown.)
      const bool gone = GoneSince(wait, fd) || (!wait.timed && !IsAt(fd));
      if (gone || mode() != Mode::kEngine) {
        rx_latch.unlock();
        tx_latch.unlock();
        if (peek) *done = 0;
        return gone ? kGone : kRetry;
      }
      if (stream_->ReadsLane() || last_look) stream_->Progress();
      n = drop && !stream_->FastRx() ? Drop(left, peek)
                                     : stream_->Read(to, pieces, left, peek);
      if (n > 0 && !peek) lane_rx_ += static_cast<std::uint64_t>(n);
      if (n < 0 && *done > 0 && !peek) {
        stream_->KeepError(static_cast<int>(-n));
      }
      HandleChanges();
      if (lane_ == nullptr && stream_->Idle()) PostSettle();
      tx_latch.unlock();
    }
    if (n == -EAGAIN && rd_shut_) n = 0;
    if (n > 0) *done = (peek ? 0 : *done) + static_cast<std::size_t>(n);
    // (An error in place of what an earlier look has seen.)
    if (n < 0 && n != -EAGAIN && peek) *done = 0;
    const bool more = all || in_place.GoesOn();
    if (n >= 0 && (!more || n == 0 || *done == total)) break;
    if (n < 0 && (n != -EAGAIN || !block || (*done > 0 && !more))) break;
    // (The kernel's ends at the mark of urgent data, too.)
    if (n > 0 && !stream_->FastRx() && AtMark()) break;
    if (n > 0 && !peek) continue;  // MSG_WAITALL: more may be there
    // A peek waits for all as well, whichever way the rest comes: a switch may
    // be under way, or a ring be too small and its stream on the way to TCP.
    if (n > 0 &&
        (!block || rd_shut_ || stream_->EndsIn(static_cast<std::size_t>(n)))) {
      break;
    }
    const bool ends = n > 0 && TcpEndsNext();
    if (ends && last_look) break;
    last_look = ends;
    if (ends) continue;  // once more, with all that came before that
    wait.part = *done > 0;
    if (!all && lends) in_place.Begin(to, left, false);
    const int w = n > 0               ? WaitBehind(wait, seq)
                  : *done > 0 && !all ? WaitRest(wait, seq)
                                      : WaitRx(wait, seq);
    if (GoneSince(wait, fd)) [[unlikely]] {
      rx_latch.unlock();
      if (peek) *done = 0;
      return kGone;
    }
    if (w != 0) {
      if (w == kLeft) [[unlikely]] {
        rx_latch.unlock();
        if (peek) *done = 0;
        return kLeft;
      }
      n = w;
      break;
    }
  }
  rx_latch.unlock();
  if (nothing && n > 0) {
    *done = 0;
    return 0;
  }
  if (*done > 0) return static_cast<ssize_t>(*done);
  if (n >= 0) return n;
  errno = static_cast<int>(-n);
  return -1;
}

ssize_t Sock::Drop(std::size_t limit, bool peek) {
  char nowhere[4096];
  std::size_t done = 0;
  for (;;) {
    const std::size_t left = limit - done;
    const iovec one{nowhere, left < sizeof nowhere ? left : sizeof nowhere};
    const ssize_t n = stream_->Read(&one, 1, one.iov_len, peek);
    if (n < 0 && done > 0) stream_->KeepError(static_cast<int>(-n));
    if (n <= 0) return done > 0 ? static_cast<ssize_t>(done) : n;
    // (All that is there, which need not be looked at.)
    if (peek) {
      return std::max(n,
                      static_cast<ssize_t>(std::min(limit, ReadableLatched())));
    }
    done += static_cast<std::size_t>(n);
    if (done == limit || AtMark()) return static_cast<ssize_t>(done);
  }
}

}  // namespace rcsock::posix
