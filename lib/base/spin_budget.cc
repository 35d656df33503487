#include "lib/base/spin_budget.h"

#include "lib/base/barrier.h"
#include "lib/base/config.h"

namespace rcsock::base {

thread_local constinit SpinBudget tls_spin;
std::atomic<std::uint64_t> spun_ns{0};
std::atomic<std::uint64_t> spun_well_ns{0};

void SpinBudget::Spun(std::uint64_t ticks, bool found, std::uint32_t most_us) {
  // A thread that was stopped meanwhile has not spun for so long.
  const std::uint64_t ns =
      std::min<std::uint64_t>(ticks * 1'000 / ticks_per_us, 1'000'000);
  spun += static_cast<std::uint32_t>(ns);
  if (found) spun_well += static_cast<std::uint32_t>(ns);
  if (spun >= kSpunUncountedNs) {
    spun_ns.fetch_add(spun, std::memory_order_relaxed);
    spun_well_ns.fetch_add(spun_well, std::memory_order_relaxed);
    spun = spun_well = 0;
  }
  if (!earned) return;
  if (found) {
    account.Found(static_cast<std::int64_t>(ns));
  } else {
    account.Missed(static_cast<std::int64_t>(ns));
  }
  if (!held) us = account.AllowedUs(most_us);
}

void SpinBudget::Slept(std::uint64_t ticks, bool came, std::uint32_t most_us) {
  constexpr std::uint64_t kNapUs = kNapNs / 1'000;
  const bool is_long = ticks > kNapUs * ticks_per_us;
  long_behind[slept_long] = is_long;
  slept_long = is_long;
  if (earned) {
    if (came) account.Slept();
    if (!held) us = account.AllowedUs(most_us);
    return;
  }
  if (held) return;
  if (ticks / ticks_per_us < 10ull * most_us) {
    // If both ends had spun a little longer, both would have stayed awake.
    us = most_us;
  } else if (us > 2) {
    us /= 2;
  }
}

}  // namespace rcsock::base
