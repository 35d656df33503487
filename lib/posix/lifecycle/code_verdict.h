#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_CODE_VERDICT_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_CODE_VERDICT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace rcsock::posix {

// What is known of the program's machine code (lib/posix/lifecycle/raw_code.h).
//
// A look reads the list of mappings once, and the code of these mappings later.
// The loader may map a library in between.  So one count of opens orders looks
// and opens, and one latch of the owner guards every change:
//
// - Acquit alone stores kNone.  Acquit refuses if an open has been counted
//   since the look read the list, or is under way.
// - An open whose end rcsock sees is counted behind its end, when its library
//   is in the list.  If the opening thread then finds kNone, it looks again.
//   If it finds kUnknown, every look that may end with kNone begins behind the
//   count.
// - An open whose end rcsock does not see is counted before it begins, and
//   takes kNone back.  No look begins before the open's time is over and the
//   loader is at rest.  If such an open takes longer than its time before it
//   maps anything, on a slow file system for instance, only the next look
//   notices the library.
class CodeVerdict {
 public:
  enum class State : std::uint8_t {
    kUnknown,
    kNone,           // no code that uses streams past the hooks
    kMayUseStreams,  // for good
  };

  // Any thread may call this without the latch.
  State state() const { return state_.load(std::memory_order_seq_cst); }

  // The rest requires the owner's latch.

  // A look is about to read the list of mappings.  Returns its ticket.
  std::uint64_t BeginLook() const { return opens_; }
  // Returns true if a library has come since then.
  bool IsStale(std::uint64_t ticket) const { return ticket != opens_; }

  // An open is over.
  void Opened() { ++opens_; }
  // An open begins, and its end will not be seen.
  void UnseenOpen(std::uint64_t now_ns) {
    ++opens_;
    unseen_until_ns_ = now_ns + kUnseenNs;
    if (Now() == State::kNone) Store(State::kUnknown);
  }

  // Returns how long a look is to wait; 0: it may begin.  `loading`: the loader
  // is changing its list.
  std::uint64_t WaitNs(std::uint64_t now_ns, bool loading) {
    if (now_ns < unseen_until_ns_) return unseen_until_ns_ - now_ns;
    if (!loading) {
      loading_ = 0;
      return 0;
    }
    // In a child of fork the loader may seem at work for ever.
    return kLoadingNs << std::min(loading_++, kMostDoublings);
  }

  // A look has found nothing.  Returns false if another look must follow.
  bool Acquit(std::uint64_t ticket, std::uint64_t now_ns, bool loading) {
    if (Now() == State::kMayUseStreams) return true;
    if (IsStale(ticket) || now_ns < unseen_until_ns_ || loading) return false;
    Store(State::kNone);
    return true;
  }
  // A look has found something, or nothing is certain.
  void Condemn() { Store(State::kMayUseStreams); }

  // After this time an open whose end is not seen is over, if the loader is at
  // rest.
  static constexpr std::uint64_t kUnseenNs = 1'000'000'000;

 private:
  static constexpr std::uint64_t kLoadingNs = 1'000'000;
  static constexpr int kMostDoublings = 10;

  State Now() const { return state_.load(std::memory_order_relaxed); }
  // seq_cst: BeforeUnseenOpen looks at the streams behind it.
  void Store(State state) { state_.store(state, std::memory_order_seq_cst); }

  std::atomic<State> state_{State::kUnknown};
  std::uint64_t opens_ = 0;
  std::uint64_t unseen_until_ns_ = 0;
  int loading_ = 0;  // waits in a row
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_CODE_VERDICT_H_
