// What arrives at a set while its thread is outside every wait, and in which
// order.

#include "lib/posix/iomux/epoll_away.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "lib/base/clock.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using rendezvous::Conductor;

// The sets whose threads have just been in a wait.
class AwaySets {
 public:
  // Every set that has ever been watched.
  static constinit std::atomic<EpollSet*> all;
  // The conductor that looks at these sets.  Null: none looks.
  static constinit std::atomic<Conductor*> looks;
  // The time between its looks.
  static constinit std::atomic<std::uint32_t> look_ms;

  static void Look(Conductor* conductor);
  static void Start(Conductor* conductor);
  static void ForkChild();
};
constinit std::atomic<EpollSet*> AwaySets::all{nullptr};
constinit std::atomic<Conductor*> AwaySets::looks{nullptr};

namespace {

constexpr std::uint32_t kLeastLookMs = 4;
// Threads that a look finds in their waits need none: their bells are armed.  A
// service at a small part of its load has such threads nearly always, and each
// look costs it two switches of threads.
constexpr std::uint32_t kMostLookMs = 32;

}  // namespace

constinit std::atomic<std::uint32_t> AwaySets::look_ms{kLeastLookMs};

void AwaySets::Start(Conductor* conductor) {
  if (conductor->After(look_ms.load(std::memory_order_relaxed),
                       [conductor] { Look(conductor); }) == 0) {
    looks.store(nullptr, std::memory_order_seq_cst);
  }
}

void AwaySets::Look(Conductor* conductor) {
  bool more = false;
  bool away = false;
  const std::uint32_t ms = look_ms.load(std::memory_order_relaxed);
  for (EpollSet* set = all.load(std::memory_order_acquire); set != nullptr;
       set = set->away_next_) {
    // A wait that ends from here on has the set looked at again.
    if (!set->away_watched_.exchange(false, std::memory_order_seq_cst) ||
        !set->NoteAway(ms, &away)) {
      continue;
    }
    set->away_watched_.store(true, std::memory_order_seq_cst);
    more = true;
  }
  look_ms.store(away ? kLeastLookMs : std::min(2 * ms, kMostLookMs),
                std::memory_order_relaxed);
  if (!more) {
    looks.store(nullptr, std::memory_order_seq_cst);
    // A set that another thread has added since then sees that no conductor
    // looks, or is seen here.
    for (EpollSet* set = all.load(std::memory_order_seq_cst); set != nullptr;
         set = set->away_next_) {
      more |= set->away_watched_.load(std::memory_order_seq_cst);
    }
    Conductor* nobody = nullptr;
    if (!more || !looks.compare_exchange_strong(nobody, conductor)) return;
  }
  Start(conductor);
}

// Called at the end of a wait, before the thread returns to the program.
void EpollSet::WatchAwayNow() {
  Conductor* const conductor = Conductor::IfRunning();
  if (conductor == nullptr ||
      (away_watched_.load(std::memory_order_relaxed) &&
       AwaySets::looks.load(std::memory_order_relaxed) == conductor)) {
    return;
  }
  const Critical critical;
  interest_latch.lock();
  if (!away_listed_) {
    away_listed_ = true;
    away_next_ = AwaySets::all.load(std::memory_order_relaxed);
    AwaySets::all.store(this, std::memory_order_seq_cst);
  }
  interest_latch.unlock();
  away_watched_.store(true, std::memory_order_seq_cst);
  if (AwaySets::looks.exchange(conductor, std::memory_order_seq_cst) !=
      conductor) {
    AwaySets::Start(conductor);
  }
}

// While no thread waits in the set, a sender says when it has sent the first
// message (ShmLane::Stamp), and rings the bell.  The bell then has the place of
// the first message in the kernel's ready list.  If each wait armed at its end,
// each message would cost a stamp and a ring.  So the conductor arms a moment
// later, for a thread that does not come back soon.
bool EpollSet::NoteAway(std::uint32_t ms, bool* away) {
  const Critical critical;
  if (!wait_latch_.try_lock()) {
    // A thread that has the latch looks or spins: it is not away.  Its bell is
    // armed at a later look, if it leaves.
    return true;
  }
  const std::uint32_t waits =
      wait_number_ - std::exchange(away_number_, wait_number_);
  const bool quiet = waits == 0;
  // A thread that looks each 0.25 ms is not away.  Senders would only ring for
  // it, and a look would take its CPU.  A wait that sleeps looks three times.
  const bool busy = waits >= 4 * ms;
  Rebuild();
  const bool mixes = Mixes();
  const bool inside = sleepers_.load(std::memory_order_seq_cst) > 0 ||
                      strangers_.load(std::memory_order_seq_cst) > 0;
  if (mixes && !inside && !busy && !armed_awake_) {
    ArmAwake();
    // What lanes already have comes before what the kernel gets from now on.
    if (came_before_ != 0) KickBell();
    // Until the kernel has been asked (NoLocalNews).
    local_recent_.store(true, std::memory_order_release);
  }
  wait_latch_.unlock();
  *away |= !inside && !busy;
  // Where no wait has ended since the last look, the thread is in its wait or
  // the bell is armed.  The end of the next wait has the looks begin again.
  return mixes && !quiet;
}

// A set that another thread was closing is in no table (MirrorsForkChild).
void AwaySets::ForkChild() {
  looks.store(nullptr, std::memory_order_relaxed);
  for (EpollSet* set = all.load(std::memory_order_relaxed); set != nullptr;
       set = set->away_next_) {
    Registry::ForkChild(set);
  }
}

void AwayForkChild() { AwaySets::ForkChild(); }

}  // namespace rcsock::posix
