// What a call of a stream on a lane does until there is room, or input: it
// spins, then sleeps.  Also the sleep of a thread that polls one stream
// (Looks).

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/sleep.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {

void Sock::Begin(Wait& wait,
                 const std::atomic<std::uint64_t>& timeout_ns) const {
  if (wait.timed) return;
  wait.timed = true;
  wait.signals = tls_signals.interrupts;
  wait.any = wait.later ? tls_signals.begun : tls_signals.any;
  const std::uint64_t limit = timeout_ns.load(std::memory_order_relaxed);
  if (limit == 0) return;
  const std::uint64_t begun = left_.Deadline();
  wait.deadline_ns = begun != 0 ? begun : base::NowNs() + limit;
}

int Sock::WaitTx(Wait& wait, std::uint32_t seq) {
  Begin(wait, snd_timeout_ns);
  if (!stream_->FastTx()) return SleepOn(wait, true, 0, seq, nullptr);
  Spinner spin;
  do {
    if (lane_->Writable() > 0) {
      spin.Found();
      return 0;
    }
    if (tx_latch.Contended()) {
      if (left_.GiveWay(wait, true)) return kJoinsLeft;
      if (wait.life != calls_.Life() || mode() != Mode::kEngine ||
          !stream_->FastTx()) {
        return 0;
      }
    }
  } while (spin.Go());
  starvation_.Watch();
  const std::uint32_t token = lane_->SleepToken(true);
  if (lane_->Writable() > 0) return 0;
  return SleepOn(wait, true, token, seq, lane_.get());
}

void Looks::CountForPoll() {
  if (!sock_->rx_latch.try_lock()) return;
  if (sock_->mode() == Mode::kEngine && sock_->lane_ != nullptr)
    sock_->CountForSpin();
  sock_->rx_latch.unlock();
}

// The lane's count of messages sent is the thread's, if it has one stream.
void Sock::CountForSpin() {
  if (!lane_is_shm_) return;
  const auto* const lane = static_cast<lane::shm::ShmLane*>(lane_.get());
  tls_spin.Count(lane, static_cast<std::uint32_t>(lane->Sent()));
}

int Sock::WaitRx(Wait& wait, std::uint32_t seq) {
  Begin(wait, rcv_timeout_ns);
  if (!stream_->ReadsLane()) return SleepOn(wait, false, 0, seq, nullptr);
  CountForSpin();
  Spinner spin;
  do {
    if (lane_->RxPendingQuick()) {
      spin.Found();
      return 0;
    }
    if (rx_latch.Contended()) {
      if (left_.GiveWay(wait, false)) return kJoinsLeft;
      if (wait.life != calls_.Life() || mode() != Mode::kEngine ||
          !stream_->ReadsLane()) {
        return 0;
      }
    }
  } while (spin.Go());
  const std::uint32_t token = lane_->SleepToken(false);
  if (lane_->RxPending()) return 0;
  return SleepOn(wait, false, token, seq, lane_.get());
}

// Waits for more than a peek has seen.  A lane tells what there is, not what
// comes behind it, so this looks again each millisecond.
int Sock::WaitBehind(Wait& wait, std::uint32_t seq) {
  Begin(wait, rcv_timeout_ns);
  constexpr std::uint64_t kLookNs = 1'000'000;
  const std::uint64_t look = base::NowNs() + kLookNs;
  const bool last = wait.deadline_ns != 0 && wait.deadline_ns <= look;
  Wait brief = wait;
  if (!last) brief.deadline_ns = look;
  const int result = SleepOn(brief, false, 0, seq, nullptr);
  return last || (result != 0 && result != -EAGAIN) ? result : 0;
}

int Sock::WaitRest(Wait& wait, std::uint32_t seq) {
  Begin(wait, rcv_timeout_ns);
  // The sender is within its call, or has found no room and comes back late.
  constexpr std::uint64_t kRestNs = 1'000'000;
  const std::uint64_t end = base::NowNs() + kRestNs;
  Wait brief = wait;
  if (wait.deadline_ns == 0 || wait.deadline_ns > end) brief.deadline_ns = end;
  return WaitRx(brief, seq);
}

namespace {

timespec TimeFor(std::uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000),
          static_cast<long>(ns % 1'000'000'000)};
}

// One sleep of this thread, on a lane or on a word of its stream.
struct Sleep {
  // Sleeps, unless something has changed, until `limit`, if that is not null.
  // Handlers run meanwhile.  One that has run since the call began must end the
  // call.  Returns as FutexSleep.
  int For(timespec* limit) const;
  bool Handled() const { return handlers != before; }

  const volatile std::uint32_t& handlers;
  const std::uint32_t before;
  std::atomic<std::uint32_t>& word;
  const std::uint32_t seq;
  lane::Lane* const lane;
  const std::uint32_t token;
  const bool tx;
};

inline int Sleep::For(timespec* limit) const {
  ThreadSignals& self = tls_signals;
  const OutsideCritical outside;
  if (Handled()) return -EINTR;
  int result = 0;
  if (lane == nullptr) {
    self.word = &word;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    result = Handled() ? -EINTR : base::FutexSleep(&word, seq, limit, false);
    self.word = nullptr;
  } else if (word.load(std::memory_order_seq_cst) == seq) {
    self.lane = lane;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    result = Handled() ? -EINTR
             : tx      ? lane->SleepTx(token, limit)
                       : lane->SleepRx(token, limit);
    self.lane = nullptr;
  }
  return result;
}

}  // namespace

// A program that is linked with rcsock may have set O_NONBLOCK by a plain
// fcntl.
bool Sock::MayBlock(const Wait& wait) {
  if (wait.poll || OwnFace() != Face::kLibrary ||
      nonblock.load(std::memory_order_relaxed)) {
    return true;
  }
  const long flags = ::syscall(SYS_fcntl, fd(), F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) return true;
  nonblock.store(true, std::memory_order_relaxed);
  return false;
}

// A wake-up cannot be lost (I-SLEEP-1).  Without a lane: `seq` was read before
// the stream was looked at, each change bumps the word after, and the kernel
// compares.  With a lane: the lane does this with its own word and `token`.
// Also, Wake bumps the word before it looks for sleepers on the lane, while
// here the sleeper is counted before it looks at the word.  So one side sees a
// change of state in between.  Where the stream leaves the lane, Settling looks
// for sleepers, with both latches, and makes all of them return.
//
// The analysis cannot know a latch that `tx` chooses.
int Sock::SleepOn(Wait& wait, bool tx, std::uint32_t token, std::uint32_t seq,
                  lane::Lane* lane) RC_NO_LOCK_CHECK {
  if (!MayBlock(wait)) return -EAGAIN;
  ThreadSignals& self = tls_signals;
  const Sleep sleep{wait.poll || wait.part ? self.any : self.interrupts,
                    wait.part ? wait.any : wait.signals,
                    sleepers_.Word(tx),
                    seq,
                    lane,
                    token,
                    tx};
  base::Latch& latch = tx ? tx_latch : rx_latch;
  std::atomic<int>& count =
      lane != nullptr ? sleepers_.OnLane() : sleepers_.OnWord(tx);
  count.fetch_add(1, std::memory_order_seq_cst);
  const bool is_left = left_.Sleeps();
  latch.unlock();
  const std::uint64_t start = base::Ticks();
  const std::uint64_t now = wait.deadline_ns != 0 ? base::NowNs() : 0;
  const bool late = wait.deadline_ns != 0 && now >= wait.deadline_ns;
  timespec left = late ? timespec{} : TimeFor(wait.deadline_ns - now);
  int result = late ? -EAGAIN : 0;
  {
    CountedSleep counted(&count);
    // No latch is held, and unwinding undoes the rest.
    ::pthread_testcancel();
    if (!late) {
      result = sleep.For(wait.deadline_ns != 0 ? &left : nullptr);
      if (sleep.Handled()) result = -EINTR;
      if (result == -EINTR && (wait.poll || wait.deadline_ns == 0) &&
          !wait.part && !sleep.Handled()) {
        result = 0;  // the handler asked for SA_RESTART, or there was none
      }
      if (lane != nullptr && result != -EAGAIN) {
        Spinner::Slept(start, result == 0);
      }
      ::pthread_testcancel();
    }
    // The call is counted until it holds the latch, so that a closing thread
    // knows of it.
    latch.lock();
    if (is_left) [[unlikely]] {
      left_.Wakes();
    } else if (left_.Joins(wait, result)) {
      result = kJoinsLeft;
    }
  }
  if (result == kJoinsLeft || result == -EINTR) return result;
  // Behind a handler with SA_RESTART the kernel makes a call anew that has
  // moved nothing.  So that handler does not end what the call moves later.
  if (!wait.part) wait.any = self.any;
  if (wait.deadline_ns != 0 && base::NowNs() >= wait.deadline_ns) {
    return -EAGAIN;
  }
  return 0;
}

bool Looks::SleepForInput(int number, std::uint64_t deadline_ns,
                          std::uint32_t signals) {
  // With a deadline the kernel ends the sleep for any handler, as it ends
  // poll(), and not only for a handler without SA_RESTART.  That includes a
  // handler that rcsock knows nothing of.
  constexpr std::uint64_t kHourNs = 3'600'000'000'000;
  if (deadline_ns == 0) deadline_ns = base::NowNs() + kHourNs;
  Critical critical;
  sock_->rx_latch.lock();
  const std::uint32_t seq = sock_->sleepers().Seq(false);
  if (!sock_->IsAt(number) || sock_->mode() != Mode::kEngine ||
      sock_->lane_ == nullptr || !sock_->stream_->FastRx()) {
    sock_->rx_latch.unlock();
    return false;
  }
  const std::uint32_t token = sock_->lane_->SleepToken(false);
  // This is all that Readiness tells of a stream that is asked for input.
  if (!sock_->lane_->RxPending() && !sock_->rd_shut_ && !sock_->Completions()) {
    CallWait wait{.deadline_ns = deadline_ns,
                  .signals = signals,
                  .timed = true,
                  .poll = true};
    sock_->SleepOn(wait, false, token, seq, sock_->lane_.get());
  }
  // The kernel's poll, too, keeps what it sleeps on until it returns.  This
  // poll returns then, for the number names nothing.
  const bool left = sock_->left().Any();
  sock_->rx_latch.unlock();
  if (left) [[unlikely]]
    sock_->left().End();
  return true;
}

}  // namespace rcsock::posix
