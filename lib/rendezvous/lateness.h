#ifndef RCSOCK_LIB_RENDEZVOUS_LATENESS_H_
#define RCSOCK_LIB_RENDEZVOUS_LATENESS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rcsock::rendezvous {

// Decides when the conductor's prompt thread takes over from the patient one,
// and for how long (Shifts). Times are in nanoseconds.
//
// Threads: one at a time.
class Lateness {
 public:
  // The patient thread waits for a request or two of a program that sleeps in
  // between, which takes 0.1 to 0.3 ms. Where programs do not sleep, it waits
  // for the ends of their slices, of 1.4 to 4 ms each. It is late after one
  // wait of kSliceNs, and after two of kLongNs in a row.
  static constexpr std::uint64_t kLongNs = 400'000;
  static constexpr std::uint64_t kSliceNs = 1'500'000;
  // The patient thread looks no more often.
  static constexpr std::uint64_t kLookNs = 300'000;
  // The prompt thread's first shift. If the patient thread is late again within
  // kCalmNs, the next shift is twice as long.
  static constexpr std::uint64_t kLeastPromptNs = 50'000'000;
  static constexpr std::uint64_t kMostPromptNs = 1'600'000'000;
  static constexpr std::uint64_t kCalmNs = 200'000'000;

  // What the kernel has counted for the patient thread: its time on a CPU, and
  // its waits for one.
  struct Counts {
    std::uint64_t ran = 0;
    std::uint64_t waited = 0;
  };

  void Begin(std::uint64_t now) {
    since_ = now;
    prompt_for_ = kLeastPromptNs / 2;
  }

  bool MayLook(std::uint64_t now) const { return now - looked_ >= kLookNs; }

  // Returns whether the patient thread is late.
  bool Look(std::uint64_t now, const Counts& counts) {
    looked_ = now;
    const std::uint64_t runs = counts.ran - before_.ran;
    waits_ = counts.waited - before_.waited;
    before_ = counts;
    // A long stretch of work is interrupted often.
    const bool long_wait = waits_ > kLongNs && waits_ > runs;
    const bool again = std::exchange(long_wait_, long_wait) && long_wait;
    return waits_ > kSliceNs || again;
  }

  // The prompt thread's shift begins.
  void BeginPrompt(std::uint64_t now) {
    const std::uint64_t lasted = now - since_;
    prompt_for_ = lasted < kCalmNs + waits_
                      ? std::min(2 * prompt_for_, kMostPromptNs)
                      : kLeastPromptNs;
    since_ = now;
    waits_ = 0;
  }

  bool PromptIsOver(std::uint64_t now) const {
    return now - since_ >= prompt_for_;
  }

  // The patient thread is offered its shift. If it does not take it, the prompt
  // thread's shift begins anew.
  void Offer(std::uint64_t now) { since_ = now; }

  // The patient thread's shift begins. What it has waited for before does not
  // count.
  void BeginPatient(std::uint64_t now, const Counts& counts) {
    since_ = now;
    before_ = counts;
    long_wait_ = false;
  }

 private:
  std::uint64_t looked_ = 0;
  Counts before_;
  bool long_wait_ = false;
  std::uint64_t waits_ = 0;  // since the look before
  std::uint64_t since_ = 0;  // the beginning of this shift
  std::uint64_t prompt_for_ = 0;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_LATENESS_H_
