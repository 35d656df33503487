#ifndef RCSOCK_LIB_BASE_SPIN_BUDGET_H_
#define RCSOCK_LIB_BASE_SPIN_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/spin_account.h"

namespace rcsock::base {

// How long this thread spins before it sleeps.
//
// A wake-up costs a hundred ring crossings, so a spin that is long enough to
// meet the answer pays.  A spin that never meets the answer is halved each
// time.  A spinner that loses its CPU to a thread with work of its own loses a
// whole slice, milliseconds.  If several threads want that CPU, it loses a
// slice to each.  A thread that sleeps is woken at once.  So after such a loss
// the thread sleeps at once for a while: the hold.  The hold is several times
// the loss, so that losses take a small part of the time however many threads
// want the CPU.  It doubles each time that a loss comes again soon.
struct SpinBudget {
  std::uint32_t us = ~0u;      // ~0: not set yet; 0 in a hold
  std::uint32_t held_us = 0;   // what `us` is after the hold
  std::uint64_t hold = 0;      // length of the last hold, in ticks
  std::uint64_t hold_end = 0;  // when the hold ends, or ended, in ticks
  std::uint64_t loss_end = 0;  // when the hold of the last loss ends, or ended
  bool held = false;
  bool gave_way = false;  // the last yield
  // Whether `us` is what the account allows (Profile::kBalanced).
  bool earned = false;
  // Whether the thread's last sleep was longer than a nap, and whether the
  // sleep behind the last short one, or the last long one, was.  A client
  // sleeps for an answer and then until its next request, in turn.
  bool slept_long = false;
  bool long_behind[2] = {};
  SpinAccount account;
  // The last count that Count got, and of which lane or set.
  std::uint32_t counted = 0;
  const void* counted_of = nullptr;
  // What is not in spun_ns and spun_well_ns yet.
  std::uint32_t spun = 0;
  std::uint32_t spun_well = 0;

  // Begins a thread that has not spun yet.
  void Begin(std::uint32_t most_us, bool is_earned) {
    us = most_us;
    earned = is_earned;
  }
  // A spin of so many ticks is over.
  void Spun(std::uint64_t ticks, bool found, std::uint32_t most_us);
  // The thread has slept.  `came`: until something came on a lane.
  void Slept(std::uint64_t ticks, bool came, std::uint32_t most_us);
  // Whether the next sleep is likely to be longer than a nap.  The end of its
  // nap would wake the thread in vain.
  bool SleepsLong() const { return long_behind[slept_long]; }
  // A lane or set has moved, or reported, `count` messages since it began.
  // Adds to the account the messages since this thread last called.  Leaves out
  // the message of the wait that calls, since the spin or the sleep accounts
  // for that message.
  void Count(const void* of, std::uint32_t count) {
    if (!earned) return;
    // A count that begins anew says nothing.
    const auto more = static_cast<std::int32_t>(count - counted);
    if (of == counted_of && more > 1) {
      account.Quick(static_cast<std::uint32_t>(more - 1));
    }
    counted_of = of;
    counted = count;
  }
  // A message of this thread has had to wake its peer.
  void WokePeer(std::uint32_t most_us) {
    if (earned && !held) us = account.AllowedAsleepUs(most_us);
  }

  // Returns true if there is a hold. Ends it when it is over.
  bool Held(std::uint64_t now) {
    if (held && now >= hold_end) {
      held = false;
      // What the thread has spun in vain since counts.
      us = earned ? account.AllowedUs(held_us) : held_us;
    }
    return held;
  }
  // The thread waited `ticks` until `now` to be scheduled again.
  void Lost(std::uint64_t ticks, std::uint64_t now) {
    // More than a peer needs to answer, and less than a slice.
    constexpr std::uint64_t kSliceUs = 100;
    if (ticks > kSliceUs * ticks_per_us) Hold(ticks, now);
  }
  // A yield of so many ticks is over.  Returns whether it has let another
  // thread run.  The kernel takes a yield for the use of a whole slice (EEVDF:
  // of the virtual run time since Linux 6.18, of the deadline before).  A
  // thread that yields again and again is so far in debt that it stands still
  // for tens of milliseconds once the others have work.  So such yields come in
  // slices' distance.  A single one says nothing: an interrupt takes as long.
  bool Yielded(std::uint64_t ticks, std::uint64_t now) {
    // More than a yield to nobody takes.
    constexpr std::uint64_t kHandedUs = 2;
    Lost(ticks, now);
    const bool gave = ticks > kHandedUs * ticks_per_us;
    if (std::exchange(gave_way, gave) && gave) GiveWay(now);
    return gave;
  }

 private:
  void GiveWay(std::uint64_t now) {
    constexpr std::uint64_t kSliceUs = 4'000;
    gave_way = false;
    const std::uint64_t end = now + kSliceUs * ticks_per_us;
    if (held) {
      // The yield was a loss, too.
      hold_end = std::max(hold_end, end);
      return;
    }
    hold_end = end;
    held_us = us;
    us = 0;
    held = true;
  }

  [[gnu::noinline]] void Hold(std::uint64_t lost, std::uint64_t now) {
    constexpr std::uint64_t kLeastUs = 2'000;
    constexpr std::uint64_t kMostUs = 128'000;
    // Multiples of what was lost.
    constexpr std::uint64_t kLeastTimes = 8;
    constexpr std::uint64_t kMostTimes = 32;
    // The limit for any loss.  If a machine was stopped, the loss says nothing
    // of its load.
    constexpr std::uint64_t kLimitUs = 2'000'000;
    if (held) return;
    const std::uint64_t limit = kLimitUs * ticks_per_us;
    lost = std::min(lost, limit);
    const std::uint64_t least =
        std::min(std::max(kLeastUs * ticks_per_us, kLeastTimes * lost), limit);
    const std::uint64_t most =
        std::min(std::max(kMostUs * ticks_per_us, kMostTimes * lost), limit);
    // The time of the loss does not count as a time without loss.
    const bool soon = hold != 0 && now - loss_end <= 4 * hold + lost;
    hold = soon ? std::clamp(2 * hold, least, most) : least;
    loss_end = hold_end = now + hold;
    held_us = us;
    us = 0;
    held = true;
  }
};
extern thread_local constinit SpinBudget tls_spin
    __attribute__((tls_model("initial-exec")));

// How long threads of this process have spun after the looks of the first
// microsecond, and for how much of that they found something.  A thread may
// have kSpunUncountedNs that are not added yet.
extern std::atomic<std::uint64_t> spun_ns;
extern std::atomic<std::uint64_t> spun_well_ns;
constexpr std::uint32_t kSpunUncountedNs = 200'000;

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SPIN_BUDGET_H_
