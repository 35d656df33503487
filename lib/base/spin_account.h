#ifndef RCSOCK_LIB_BASE_SPIN_ACCOUNT_H_
#define RCSOCK_LIB_BASE_SPIN_ACCOUNT_H_

#include <algorithm>
#include <cstdint>

namespace rcsock::base {

// How long one thread may spin, so that it spends no more CPU time than its
// messages would have cost over TCP.  docs/spinning.md has the argument.
//
// A message on a lane saves kernel time, and so earns credit.  A spin that
// finds something saves the sleep, and the peer's call that ends the sleep.  A
// spin that finds nothing is paid from the credit.
//
// Its thread alone uses the account, which reads no clock.  Times are in
// nanoseconds.
class SpinAccount {
 public:
  // What can be saved up.  A thread begins with it.
  static constexpr std::int32_t kMostNs = 400'000;
  // What a message that came and a message that went save, although the thread
  // has slept.  The number is about half of their saving, and the user keeps
  // the rest.
  static constexpr std::int32_t kSleptNs = 1'500;
  // What the two messages save if the thread has not slept: the sleep and the
  // wake-up, too.
  static constexpr std::int32_t kFoundNs = 13'000;
  // What a message saves if the account knows only that it moved.  The looks
  // before the spin have found the message, or this thread has sent it.
  static constexpr std::int32_t kQuickNs = 4'000;
  // What the looks before a spin take.
  static constexpr std::int32_t kLooksNs = 2'000;
  // The part of the credit that a try leaves when it has found something.
  static constexpr std::int32_t kTriedNs = 100'000;
  // A spin shorter than this finds nothing that the looks have not found.
  static constexpr std::int32_t kLeastNs = 6'000;

  // The thread has slept, and the message that it waited for has come.
  void Slept() { Add(kSleptNs); }
  // A spin has found something after `spent_ns`.
  void Found(std::int64_t spent_ns) {
    Add(kFoundNs - kLooksNs - spent_ns);
    // The peer may be awake from now on.  If the peer is not, the next try is
    // far off.
    if (trying_ && spent_ns > kFoundNs) {
      credit_ns_ = std::min(credit_ns_, kTriedNs);
    }
    trying_ = false;
  }
  // A spin has found nothing.
  void Missed(std::int64_t spent_ns) {
    // A try costs all the credit that was saved for it.  So tries that find
    // nothing leave most of what the lane saves.
    Add(trying_ ? -kMostNs : -kLooksNs - spent_ns);
    trying_ = false;
  }
  // One wait has reported `events` more events.
  void Beside(int events) {
    Add(std::int64_t{std::min(events, 1'024)} * kSleptNs);
  }
  // So many messages have moved without a spin or a sleep.
  void Quick(std::uint32_t times) {
    constexpr std::uint32_t kMostTimes = kMostNs / kQuickNs;
    Add(static_cast<std::int64_t>(std::min(times, kMostTimes)) * kQuickNs);
  }

  // How long the next wait may spin.
  std::uint32_t AllowedUs(std::uint32_t most_us) {
    trying_ = false;
    return credit_ns_ < kLeastNs
               ? 0
               : std::min(most_us,
                          static_cast<std::uint32_t>(credit_ns_) / 1'000);
  }
  // As AllowedUs, for a thread whose last message had to wake its peer.  An
  // answer takes as long as the wake-up, so no request is to be expected
  // sooner.  But if both ends of a loop sleep, one has to begin to spin.
  std::uint32_t AllowedAsleepUs(std::uint32_t most_us) {
    trying_ = credit_ns_ >= kMostNs;
    return trying_ ? most_us : 0;
  }

  std::int32_t credit_ns() const { return credit_ns_; }

 private:
  void Add(std::int64_t ns) {
    credit_ns_ = static_cast<std::int32_t>(std::clamp<std::int64_t>(
        credit_ns_ + ns, -std::int64_t{kMostNs}, kMostNs));
  }

  std::int32_t credit_ns_ = kMostNs;
  bool trying_ = false;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SPIN_ACCOUNT_H_
