// How threads sleep on a lane, and what wakes them.

#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/nap.h"
#include "lib/base/sleep.h"
#include "lib/base/spin_budget.h"
#include "lib/lane/shm/link_state.h"
#include "lib/lane/shm/shm_lane.h"

namespace rcsock::lane::shm {
namespace {

// A token is made of two words. The peer bumps the shared word for its news;
// WakeLocal and Kill bump that word and this end's own. The peer may write
// anything to the shared word, its old value for instance. Even so, a thread
// with a token from before the own word's bump does not fall asleep.
constexpr int kOwnShift = 24;
constexpr std::uint32_t kSharedMask = (1u << kOwnShift) - 1;

}  // namespace

void ShmLane::SetNotify(std::uint32_t bits, int bell) {
  Wish(bits, bell);
  // The wish is stored before the caller looks at the ring: see PublishTold.
  base::HeavyFenceProcesses();
}

void ShmLane::Wish(std::uint32_t bits, int bell) {
  constexpr std::uint32_t kPollerBits =
      kNotifyRxPoller | kNotifyRxBits | kNotifyTxPoller;
  const int k = bell & (kBells - 1);
  link_->SetBell(index_, k);
  own().poll.store((bits & kPollerBits) | static_cast<std::uint32_t>(k) << 8,
                   std::memory_order_relaxed);
}

bool ShmLane::RxPending() const { return RxPendingQuick() || Closed(); }

std::uint32_t ShmLane::SleepToken(bool tx) const {
  const auto& word = tx ? own_futex_.tx : own_futex_.rx;
  // Acquire: the caller looks after these loads.
  const std::uint32_t own = own_wake_.load(std::memory_order_acquire);
  return (word.load(std::memory_order_acquire) & kSharedMask) |
         own << kOwnShift;
}

int ShmLane::Sleep(const std::atomic<std::uint32_t>& word, std::uint32_t token,
                   const timespec* timeout) const {
  const std::uint32_t shared = word.load(std::memory_order_acquire);
  const std::uint32_t own = own_wake_.load(std::memory_order_acquire);
  if (((shared & kSharedMask) | own << kOwnShift) != token) return -EAGAIN;
  return base::FutexSleepShared(&word, shared, &own_wake_, own, timeout);
}

// The wish is stored before the slot is loaded: see PublishTold. The bit stays
// set if this thread does not sleep after all. Another thread may, and the
// waker clears the bit.
//
// No sleep without an end begins before the heavy fence and a look behind the
// fence. But that fence interrupts every processor that runs a program with
// lanes, which costs more than most sleeps of a busy program are worth. So the
// first part of a sleep is a nap, which needs no heavy fence. A sender wakes no
// thread if its message was still in its store buffer when it looked for the
// wish. The looks before the nap take longer than a store stays there. If a
// store takes longer still, the nap ends by itself. A thread that is
// likely to sleep for longer makes the heavy fence at once.
int ShmLane::SleepRx(std::uint32_t token, const timespec* timeout) {
  own().sleepers.fetch_or(kRxSleeper, std::memory_order_seq_cst);
  timespec rest{};
  if (base::barriers.processes.load(std::memory_order_relaxed) &&
      !base::tls_spin.SleepsLong() &&
      (timeout == nullptr || timeout->tv_sec > 0 ||
       timeout->tv_nsec > base::kNapNs)) {
    const std::uint64_t armed_at = base::Ticks();
    for (bool last = false; !last; base::CpuRelax()) {
      last = base::NapLooksEnd(armed_at);
      if (RxPending()) return -EAGAIN;
    }
    const timespec nap{0, base::kNapNs};
    const int result = Sleep(own_futex_.rx, token, &nap);
    if (result != -ETIMEDOUT) return result;
    if (timeout != nullptr) {
      rest = *timeout;
      rest.tv_nsec -= base::kNapNs;
      if (rest.tv_nsec < 0) {
        rest.tv_nsec += 1'000'000'000;
        --rest.tv_sec;
      }
      timeout = &rest;
    }
    own().sleepers.fetch_or(kRxSleeper, std::memory_order_seq_cst);
  }
  base::HeavyFenceProcesses();
  if (RxPending()) return -EAGAIN;
  return Sleep(own_futex_.rx, token, timeout);
}

int ShmLane::SleepTx(std::uint32_t token, const timespec* timeout) {
  own().sleepers.fetch_or(kTxSleeper, std::memory_order_seq_cst);
  // Wish stored -> credit loaded: see PublishCredit.
  FullFence();
  // Newer, not merely different: TakeCredit takes no credit that is older.
  if (peer().consumed.load(std::memory_order_acquire) >
          credit_seen_.load(std::memory_order_acquire) ||
      Closed()) {
    return -EAGAIN;
  }
  return Sleep(own_futex_.tx, token, timeout);
}

void ShmLane::WakeLocal() {
  BumpAndWake(own_wake_, false);
  BumpAndWake(own_futex_.rx);
  BumpAndWake(own_futex_.tx);
}

}  // namespace rcsock::lane::shm
