// The calls of a stream that the engine owns: sending, receiving, waiting.

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/real.h"
#include "lib/base/sleep.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/epoll.h"
#include "lib/posix/iov_rest.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/spin.h"

namespace rcsock::posix {

using rendezvous::Conductor;

void RaiseSigpipe() {
  const int saved = errno;
  ::syscall(SYS_tgkill, ::syscall(SYS_getpid), ::syscall(SYS_gettid), SIGPIPE);
  errno = saved;
}

namespace {

// `call(message)` for all from `skip` on; only so many pieces of a long vector
// go into one.
template <class Call>
ssize_t ForRest(const iovec* iov, int count, std::size_t skip, Call&& call) {
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
    if (n <= 0) return done > 0 ? done : n;
    done += n;
    if (static_cast<std::size_t>(n) < wanted) return done;
  }
}

// The end of TCP is not the end of the stream while this end does not have the
// lane yet that both have agreed upon: the peer may have had it, put its last
// bytes into it, and died.  Its word that it has it is in a queue of the
// conductor's by then, so the wait is a short one; the kernel will say again
// that this is the end.  (A reset is not held: the kernel loses what it has not
// delivered by then, too, see killed_with_unread in tests/posix/ends.)
bool HoldsEnd(long n, bool lane_to_come) { return n == 0 && lane_to_come; }

}  // namespace

ssize_t Sock::SendRest(int fd, const iovec* iov, int count, std::size_t skip,
                       int flags) {
  return ForRest(iov, count, skip, [&](const msghdr* message) {
    return real::sendmsg(fd, message, flags);
  });
}

ssize_t Sock::RecvRest(int fd, const iovec* iov, int count, std::size_t skip,
                       int flags) {
  return ForRest(iov, count, skip, [&](msghdr* message) {
    return real::recvmsg(fd, message, flags);
  });
}

// --- stream::Anchor
// -----------------------------------------------------------------

ssize_t Sock::Send(const iovec* iov, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(iov);
  message.msg_iovlen =
      static_cast<std::size_t>(count < IOV_MAX ? count : IOV_MAX);
  const long n =
      ::syscall(SYS_sendmsg, fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return n >= 0 ? n : -errno;
}

ssize_t Sock::Recv(void* to, std::size_t length) {
  const long n =
      ::syscall(SYS_recvfrom, fd(), to, length, MSG_DONTWAIT, nullptr, nullptr);
  if (HoldsEnd(n, lane_ == nullptr && seeking_.load())) return -EAGAIN;
  if (n > 0 && stream_->rx() == stream::Rx::kRaw) {
    anchor_rx_ += static_cast<std::uint64_t>(n);
  }
  return n >= 0 ? n : -errno;
}

ssize_t Sock::RecvV(const iovec* iov, int count, bool peek) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(iov);
  message.msg_iovlen =
      static_cast<std::size_t>(count < IOV_MAX ? count : IOV_MAX);
  const long n = ::syscall(SYS_recvmsg, fd(), &message,
                           MSG_DONTWAIT | (peek ? MSG_PEEK : 0));
  if (HoldsEnd(n, lane_ == nullptr && seeking_.load())) return -EAGAIN;
  if (n > 0 && !peek) anchor_rx_ += static_cast<std::uint64_t>(n);
  return n >= 0 ? n : -errno;
}

int Sock::ShutdownWrite() {
  return ::syscall(SYS_shutdown, fd(), SHUT_WR) == 0 ? 0 : -errno;
}

// --- Sending
// -----------------------------------------------------------------------------

ssize_t Sock::QuickSend(const void* from, std::size_t length) {
  Critical critical;
  if (!tx_latch.try_lock()) return 0;
  std::size_t n = 0;
  if (mode() == Mode::kEngine && lane_is_shm_ && stream_->FastTx()) [[likely]] {
    n = static_cast<lane::shm::ShmLane*>(lane_.get())->PostQuick(from, length);
    stream_->Posted(n);
    lane_tx_ += n;
  }
  tx_latch.unlock();
  return static_cast<ssize_t>(n);
}

ssize_t Sock::EngineSend(const iovec* iov, int count, std::size_t total,
                         int flags, std::size_t* done) {
  Critical critical;
  tx_latch.lock();
  // The common case, without what waiting needs.
  if (*done == 0 && mode() == Mode::kEngine && stream_->FastTx()) [[likely]] {
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
    tx_latch.lock();
  }
  return SendLatched(iov, count, total, flags, done);
}

ssize_t Sock::SendLatched(const iovec* iov, int count, std::size_t total,
                          int flags, std::size_t* done) {
  const bool block =
      (flags & MSG_DONTWAIT) == 0 && !nonblock.load(std::memory_order_relaxed);
  Wait wait;
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
      // After a part as after nothing: who waits for the rest (or for the edge)
      // must be told when TCP takes more.
      if ((n == -EAGAIN || (n > 0 && static_cast<std::size_t>(n) < left)) &&
          stream_->tx() == stream::Tx::kRaw) {
        tx_wait_ = true;
      }
      HandleChanges();
      if (lane_ == nullptr && n > 0 && stream_->Idle() &&
          !seeking_.load(std::memory_order_relaxed)) {
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
    const int w = WaitTx(wait, seq);
    if (w != 0) {
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

ssize_t Sock::SendNull(int flags, std::size_t* done) {
  const ssize_t n = EngineSend(nullptr, 0, 0, flags, done);
  if (n < 0) return n;
  errno = EFAULT;
  return -1;
}

ssize_t Sock::RecvNull(int flags, std::size_t* done) {
  // Only what would be put there is a fault.
  char byte;
  const iovec one{&byte, 1};
  const ssize_t n =
      mode() == Mode::kEngine
          ? EngineRecv(&one, 1, 1, (flags & ~MSG_WAITALL) | MSG_PEEK, done)
          : 1;
  if (n <= 0) return n;
  *done = 0;
  errno = EFAULT;
  return -1;
}

// A receiver that stops reading would hold a sender for whom the kernel's
// larger buffers still had room (a program that talks to itself, say): such a
// stream goes back to TCP.
constexpr std::uint32_t kStarvedMs = 100;
constexpr int kMostLate = 5;

void Sock::WatchStarved() {
  if (lane_ == nullptr) return;
  starve_posted_ = lane_->Posted();
  if (starve_timer_) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  starve_timer_ = true;
  starve_acked_ = lane_->Acked();
  starve_since_ns_ = base::NowNs();
  conductor->After(kStarvedMs, [self = Share()] { self->OnStarved(); });
}

void Sock::OnStarved() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  starve_timer_ = false;
  if (mode() != Mode::kEngine || stream_ == nullptr || lane_ == nullptr ||
      !stream_->FastTx()) {
    starve_late_ = 0;
  } else if (lane_->Writable() > 0) {
    starve_late_ = 0;
    // A receiver puts off telling of a little room while there is more to take,
    // and may then take no more: who found no room has not been told of it.
    if (lane_->Posted() == starve_posted_) {
      WakeTx();
    } else {
      // Another has posted since; who found no room may wait still, in a call
      // or in an epoll set.
      WatchStarved();
    }
  } else if (lane_->Acked() != starve_acked_) {
    starve_late_ = 0;
    // Who waits now may have begun while this timer ran, and armed none.
    WatchStarved();
  } else if (base::NowNs() - starve_since_ns_ >
                 3 * kStarvedMs * 1'000'000ull / 2 &&
             ++starve_late_ < kMostLate) {
    // Where this thread is late, the receiver may be, too.
    WatchStarved();
  } else {
    starve_late_ = 0;
    stream_->Demote(base::Reason::kStarved, true);
    stream_->Progress();
    HandleChanges();
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

int Sock::WaitTx(Wait& wait, std::uint32_t seq) {
  if (!wait.timed) {
    wait.timed = true;
    wait.signals = tls_signals.interrupts;
    const std::uint64_t limit = snd_timeout_ns.load(std::memory_order_relaxed);
    if (limit != 0) wait.deadline_ns = base::NowNs() + limit;
  }
  if (!stream_->FastTx()) return SleepOn(wait, true, 0, seq, nullptr);
  Spinner spin;
  do {
    if (lane_->Writable() > 0) return 0;
    if (tx_latch.Contended()) {
      tx_latch.Yield();
      if (mode() != Mode::kEngine || !stream_->FastTx()) return 0;
    }
  } while (spin.Go());
  WatchStarved();
  const std::uint32_t token = lane_->SleepToken(true);
  if (lane_->Writable() > 0) return 0;
  return SleepOn(wait, true, token, seq, lane_.get());
}

// --- Receiving
// ------------------------------------------------------------------------------

ssize_t Sock::QuickRecv(void* to, std::size_t length, int flags) {
  Critical critical;
  if (!rx_latch.try_lock()) return 0;
  ssize_t result = 0;
  if (mode() == Mode::kEngine && lane_is_shm_ && stream_->FastRx()) [[likely]] {
    auto* const lane = static_cast<lane::shm::ShmLane*>(lane_.get());
    const bool block = (flags & MSG_DONTWAIT) == 0 &&
                       !nonblock.load(std::memory_order_relaxed);
    if (block && !lane->RxPendingQuick()) {
      // An answer that comes within a microsecond is met here, with nothing
      // left to do but to take it.
      int turns = Spinner::QuickTurns();
      while (turns > 0 && !lane->RxPendingQuick() && !rx_latch.Contended()) {
        --turns;
      }
    }
    const std::size_t n = lane->ReadQuick(to, length);
    stream_->Took(n);
    lane_rx_ += n;
    result = static_cast<ssize_t>(n);
    if (n == 0 && !block && !rd_shut_ && !lane->RxPending()) {
      errno = EAGAIN;  // it works, and there is nothing
      result = -1;
    }
  }
  rx_latch.unlock();
  return result;
}

ssize_t Sock::EngineRecv(const iovec* iov, int count, std::size_t total,
                         int flags, std::size_t* done) {
  if (flags & MSG_OOB) [[unlikely]] {
    Pin(base::Reason::kPinnedOption);
    return kRetry;
  }
  Critical critical;
  rx_latch.lock();
  // As in EngineSend.
  constexpr int kSpecial = MSG_PEEK | MSG_WAITALL | MSG_TRUNC;
  if ((flags & kSpecial) == 0 && *done == 0 && mode() == Mode::kEngine &&
      stream_->FastRx()) [[likely]] {
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
  return RecvLatched(iov, count, total, flags, done);
}

ssize_t Sock::RecvLatched(const iovec* iov, int count, std::size_t total,
                          int flags, std::size_t* done) {
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
  const bool all = (flags & MSG_WAITALL) != 0 && !peek;
  const bool drop = (flags & MSG_TRUNC) != 0;
  Wait wait;
  IovRest rest(iov, count);
  ssize_t n;
  for (;;) {  // the rx latch is held
    if (mode() != Mode::kEngine) {
      rx_latch.unlock();
      return kRetry;
    }
    const std::uint32_t seq = rx_seq_.load(std::memory_order_seq_cst);
    std::size_t left = total;
    if (*done != 0) {
      rest.Skip(*done);
      left = rest.total();
    }
    const iovec* to = drop ? nullptr : rest.iov();
    const int pieces = drop ? 0 : rest.count();
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
      rx_latch.unlock();
      tx_latch.lock();
      rx_latch.lock();
      if (mode() != Mode::kEngine) {
        rx_latch.unlock();
        tx_latch.unlock();
        return kRetry;
      }
      if (stream_->FastRx()) stream_->Progress();
      n = drop && !stream_->FastRx() ? Drop(left, peek)
                                     : stream_->Read(to, pieces, left, peek);
      if (n > 0 && !peek) lane_rx_ += static_cast<std::uint64_t>(n);
      HandleChanges();
      if (lane_ == nullptr && stream_->Idle()) PostSettle();
      tx_latch.unlock();
    }
    if (n == -EAGAIN && rd_shut_) n = 0;
    if (n > 0) *done += static_cast<std::size_t>(n);
    if (n >= 0 && (!all || n == 0 || *done == total)) break;
    if (n < 0 && (n != -EAGAIN || !block || (*done > 0 && !all))) break;
    if (n > 0) continue;  // MSG_WAITALL: more may be there
    const int w = WaitRx(wait, seq);
    if (w != 0) {
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
    if (n <= 0) return done > 0 ? static_cast<ssize_t>(done) : n;
    done += static_cast<std::size_t>(n);
    if (peek || done == limit) return static_cast<ssize_t>(done);
  }
}

int Sock::WaitRx(Wait& wait, std::uint32_t seq) {
  if (!wait.timed) {
    wait.timed = true;
    wait.signals = tls_signals.interrupts;
    const std::uint64_t limit = rcv_timeout_ns.load(std::memory_order_relaxed);
    if (limit != 0) wait.deadline_ns = base::NowNs() + limit;
  }
  if (!stream_->FastRx()) return SleepOn(wait, false, 0, seq, nullptr);
  Spinner spin;
  do {
    if (lane_->RxPendingQuick()) return 0;
    if (rx_latch.Contended()) {
      rx_latch.Yield();
      if (mode() != Mode::kEngine || !stream_->FastRx()) return 0;
    }
  } while (spin.Go());
  const std::uint32_t token = lane_->SleepToken(false);
  if (lane_->RxPending()) return 0;
  return SleepOn(wait, false, token, seq, lane_.get());
}

// A wake-up cannot be lost.  Without a lane: `seq` was read before the stream
// was looked at, whoever changes it bumps the word after, and the kernel
// compares. With one: the lane does the same with its own word and `token`; and
// since WakeRx bumps rx_seq_ before it looks at pins_, while here pins_ is
// counted before rx_seq_ is looked at, a change of state in between is seen by
// one side.
int Sock::SleepOn(Wait& wait, bool tx, std::uint32_t token, std::uint32_t seq,
                  lane::Lane* lane) {
  if (!wait.poll && OwnFace() == Face::kLibrary &&
      !nonblock.load(std::memory_order_relaxed)) {
    // A plain fcntl may have said that nobody is to sleep.
    const long flags = ::syscall(SYS_fcntl, fd(), F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) != 0) {
      nonblock.store(true, std::memory_order_relaxed);
      return -EAGAIN;
    }
  }
  ThreadSignals& self = tls_signals;
  const volatile std::uint32_t& handlers =
      wait.poll ? self.any : self.interrupts;
  std::atomic<std::uint32_t>& word = tx ? tx_seq_ : rx_seq_;
  base::Latch& latch = tx ? tx_latch : rx_latch;
  std::atomic<int>& count = lane != nullptr ? pins_
                            : tx            ? tx_sleepers_
                                            : rx_sleepers_;
  count.fetch_add(1, std::memory_order_seq_cst);
  latch.unlock();
  timespec left{};
  timespec* limit = nullptr;
  const std::uint64_t start = base::Ticks();
  const std::uint64_t now = wait.deadline_ns != 0 ? base::NowNs() : 0;
  const bool late = wait.deadline_ns != 0 && now >= wait.deadline_ns;
  int result = late ? -EAGAIN : 0;
  {
    CountedSleep counted(&count);
    // No latch is held, and unwinding undoes the rest.
    ::pthread_testcancel();
    if (!late) {
      if (wait.deadline_ns != 0) {
        const std::uint64_t ns = wait.deadline_ns - now;
        left = {static_cast<time_t>(ns / 1'000'000'000),
                static_cast<long>(ns % 1'000'000'000)};
        limit = &left;
      }
      // Outside the critical section, so that handlers run; and a handler that
      // has run since the call began must end it.
      OutsideCritical outside;
      if (handlers != wait.signals) {
        result = -EINTR;
      } else if (lane == nullptr) {
        self.word = &word;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        result = handlers != wait.signals
                     ? -EINTR
                     : base::FutexSleep(&word, seq, limit, false);
        self.word = nullptr;
      } else if (word.load(std::memory_order_seq_cst) == seq) {
        self.lane = lane;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        result = handlers != wait.signals ? -EINTR
                 : tx                     ? lane->SleepTx(token, limit)
                                          : lane->SleepRx(token, limit);
        self.lane = nullptr;
      }
    }
    if (!late) {
      if (handlers != wait.signals) result = -EINTR;
      if (result == -EINTR && (wait.poll || wait.deadline_ns == 0) &&
          handlers == wait.signals) {
        result = 0;  // the handler asked for SA_RESTART, or there was none
      }
      if (lane != nullptr && result != -EAGAIN) {
        Spinner::Slept(start);
      }
      ::pthread_testcancel();
    }
  }
  latch.lock();
  if (result == -EINTR) return -EINTR;
  if (wait.deadline_ns != 0 && base::NowNs() >= wait.deadline_ns) {
    return -EAGAIN;
  }
  return 0;
}

bool Sock::SleepForInput(std::uint64_t deadline_ns, std::uint32_t signals) {
  // With a time the kernel ends the sleep for any handler, as it ends poll(),
  // and not only for one without SA_RESTART; also for one that we know nothing
  // of.
  constexpr std::uint64_t kHourNs = 3'600'000'000'000;
  if (deadline_ns == 0) deadline_ns = base::NowNs() + kHourNs;
  Critical critical;
  rx_latch.lock();
  const std::uint32_t seq = rx_seq_.load(std::memory_order_seq_cst);
  if (mode() != Mode::kEngine || lane_ == nullptr || !stream_->FastRx()) {
    rx_latch.unlock();
    return false;
  }
  const std::uint32_t token = lane_->SleepToken(false);
  // (All that Readiness tells of a stream that is asked for input.)
  if (!lane_->RxPending() && !rd_shut_ && !Completions()) {
    Wait wait{.deadline_ns = deadline_ns,
              .signals = signals,
              .timed = true,
              .poll = true};
    SleepOn(wait, false, token, seq, lane_.get());
  }
  rx_latch.unlock();
  return true;
}

// --- The rest
// ----------------------------------------------------------------------------------

int Sock::Shutdown(int number, int how) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  int result;
  if (mode() != Mode::kEngine || stream_ == nullptr) {
    if (connected_.load(std::memory_order_relaxed)) HalfClosed();
    rx_latch.unlock();
    tx_latch.unlock();
    // The peer holds back the end of TCP for as long as a lane is agreed.
    CancelSeek();
    result = real::shutdown(number, how);
    return result;
  }
  int error = 0;
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) {
    error = EINVAL;
  } else {
    if (how != SHUT_WR) {
      rd_shut_ = true;
      WakeRx();
    }
    if (how != SHUT_RD) {
      const int r = stream_->ShutdownWrite();
      if (r < 0) error = -r;
      stream_->Progress();
      HandleChanges();
      WakeTx();
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
  if (error != 0) {
    errno = error;
    return -1;
  }
  return 0;
}

std::uint32_t Sock::EngineReadiness(std::uint32_t events, bool* plain,
                                    bool warm, bool drained) {
  Critical critical;
  std::uint32_t ready = 0;
  bool rx_fast = false;
  rx_latch.lock();
  if (mode() != Mode::kEngine) {
    rx_latch.unlock();
    *plain = true;
    return 0;
  }
  if (warm && lane_ != nullptr) lane_->Warm();
  rx_fast = stream_->FastRx();
  bool pending = rx_fast && (drained ? lane_->RxLanded() : lane_->RxPending());
  if (pending && lane_->State() != base::Reason::kNone) [[unlikely]] {
    // A dead lane is "pending" whether or not there is anything to read.
    rx_fast = pending = false;
  }
  if (pending) ready |= kInRing;
  if (pending || (rx_fast && rd_shut_)) ready |= POLLIN | POLLRDNORM;
  if (rx_fast && rd_shut_) ready |= POLLRDHUP;
  if (rx_fast && rd_shut_ && stream_->Shut()) ready |= POLLHUP;
  rx_latch.unlock();
  if (rx_fast && (events & (POLLOUT | POLLWRNORM)) == 0) {
    return ready & (events | POLLHUP);
  }
  tx_latch.lock();
  if (mode() != Mode::kEngine) {
    tx_latch.unlock();
    *plain = true;
    return 0;
  }
  if (rx_fast && stream_->FastTx()) {
    if (lane_->Writable() > 0) {
      ready |= POLLOUT | POLLWRNORM;
    } else {
      WatchStarved();
    }
    tx_latch.unlock();
    return ready & events;
  }
  rx_latch.lock();
  if (mode() != Mode::kEngine) {
    *plain = true;
    ready = 0;
  } else {
    ready = stream_->Readiness();
    // (As above: a receiver that has stopped reading is not to hold it.)
    if (stream_->FastTx() && (ready & POLLOUT) == 0 &&
        (events & (POLLOUT | POLLWRNORM)) != 0) {
      WatchStarved();
    }
    if (stream_->tx() == stream::Tx::kRaw && (ready & POLLOUT) != 0 &&
        (events & (POLLOUT | POLLWRNORM)) != 0) {
      // TCP says whether it takes more, and tells the conductor when it does.
      pollfd one{fd(), POLLOUT, 0};
      timespec now{0, 0};
      if (::syscall(SYS_ppoll, &one, 1, &now, nullptr, 8) == 0) {
        ready &= ~static_cast<std::uint32_t>(POLLOUT);
        tx_wait_ = true;
        UpdateWatch();
      }
    }
    if (stream_->AtKernel()) {
      pollfd one{fd(), POLLIN | POLLPRI | POLLRDHUP, 0};
      timespec now{0, 0};
      ::syscall(SYS_ppoll, &one, 1, &now, nullptr, 8);
      ready |= static_cast<std::uint16_t>(one.revents);
    }
    if (ready & POLLIN) ready |= POLLRDNORM;
    if (ready & POLLOUT) ready |= POLLWRNORM;
    if (rd_shut_) ready |= POLLIN | POLLRDNORM | POLLRDHUP;
    if (rd_shut_ && stream_->Shut()) ready |= POLLHUP;
  }
  rx_latch.unlock();
  tx_latch.unlock();
  return ready & (events | POLLERR | POLLHUP);
}

int Sock::TakeError() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  int error = 0;
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    error = stream_->TakeError();
    if (error != 0) {
      stream_->Progress();
      HandleChanges();
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
  return error;
}

bool Sock::ReadableBytes(int* bytes) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool unread = mode() == Mode::kUnread;
  const bool mine = unread || (mode() == Mode::kEngine && stream_ != nullptr);
  if (mine) {
    std::size_t n = unread ? unread_.size() : stream_->Readable();
    // What TCP still holds follows what the stream has: while rx is raw it is
    // the application's too.
    int more = 0;
    if ((unread || stream_->rx() == stream::Rx::kRaw) &&
        ::syscall(SYS_ioctl, fd(), FIONREAD, &more) == 0 && more > 0) {
      n += static_cast<std::size_t>(more);
    }
    *bytes = n > INT_MAX ? INT_MAX : static_cast<int>(n);
  }
  rx_latch.unlock();
  tx_latch.unlock();
  return mine;
}

bool Sock::UnsentBytes(int* bytes) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool mine =
      mode() == Mode::kEngine && stream_ != nullptr && lane_ != nullptr;
  if (mine) {
    // A lane of another host gives credit when it is needed, not when the bytes
    // have come.
    if (lane_kind_ == lane::Kind::kRdma) {
      stream_->AskLanded();
      HandleChanges();
    }
    const std::uint64_t n = stream_->Unacked();
    *bytes = n > INT_MAX ? INT_MAX : static_cast<int>(n);
  }
  rx_latch.unlock();
  tx_latch.unlock();
  return mine;
}

}  // namespace rcsock::posix
