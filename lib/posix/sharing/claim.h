#ifndef RCSOCK_LIB_POSIX_SHARING_CLAIM_H_
#define RCSOCK_LIB_POSIX_SHARING_CLAIM_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

// Which process owns a connection of which a child of fork has a copy that the
// child has not used yet.  The word lies in memory that the processes share.
// The owner is the process whose engine may have the stream.  Any thread of
// these processes may call any method.
//
// Order: each method is sequentially consistent.  The owner keeps the word, and
// then asks whether it is the only holder.  A child counts itself as a holder,
// and then asks the word.  So one of the two sees the other, and no byte of the
// child's gets between the owner's frames (I-CLAIM-1).
template <class Word = std::atomic<std::uint32_t>>
class ClaimOn {
 public:
  enum : std::uint32_t {
    kKernels = 0,  // the kernel has the stream; a holder may use it
    kOwners = 1,   // the engine of the owner has it
    kAsked = 2,    // as kOwners, and a holder waits for kKernels
    kLost = 3,     // the stream does not come back: its copies are dead
  };

  // By the owner, before its engine takes the stream, or goes on with it behind
  // an exec that has failed.
  void Keep() {
    std::uint32_t now = word.load();
    while (now == kKernels || now == kLost) {
      if (word.compare_exchange_strong(now, kOwners)) return;
    }
  }
  // By the owner, once the kernel has the stream.  Returns whether a holder
  // waits.
  bool Give() {
    std::uint32_t now = word.load();
    while (now == kOwners || now == kAsked) {
      if (word.compare_exchange_strong(now, kKernels)) return now == kAsked;
    }
    return false;
  }
  // By the owner, whose end of the stream is the end of the connection.
  // Returns whether a holder waits.
  bool Lose() {
    std::uint32_t now = word.load();
    while (now == kOwners || now == kAsked) {
      if (word.compare_exchange_strong(now, kLost)) return now == kAsked;
    }
    return false;
  }
  // By a holder that is counted.  Returns the present state of the word.
  std::uint32_t Ask() {
    std::uint32_t now = kOwners;
    return word.compare_exchange_strong(now, kAsked) ? kAsked : now;
  }
  bool Asked() const { return word.load() == kAsked; }

  Word word{kKernels};
};

using Claim = ClaimOn<>;

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_CLAIM_H_
