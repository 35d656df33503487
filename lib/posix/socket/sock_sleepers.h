#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_SLEEPERS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_SLEEPERS_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/base/paired.h"

namespace rcsock::posix {

// The threads that sleep in calls of a stream.  They sleep on a word of the
// stream, on its lane, or on the parked lane, which the stream has left since.
// A handler may jump out of a sleep, so each thread takes back its own count,
// maybe late (CountedSleep).
//
// A part of its Sock.  Any thread may call it.  `tx`: the direction.
class Sleepers {
 public:
  // Returns the word on which a thread sleeps that no lane serves.  Wake bumps
  // the word.
  std::atomic<std::uint32_t>& Word(bool tx) { return words_[tx]; }
  std::uint32_t Seq(bool tx) const {
    return words_[tx].load(std::memory_order_seq_cst);
  }
  // Return where a thread counts itself that sleeps on the word, or on the
  // lane.  OnLane requires either latch of the stream.
  std::atomic<int>& OnWord(bool tx) { return counts_[tx]; }
  std::atomic<int>& OnLane() { return pins_[lane_]; }
  // Return whether threads sleep on the lane, or on the parked lane.  Require
  // either latch of the stream.
  bool AnyOnLane() const {
    return pins_[lane_].load(std::memory_order_seq_cst) != 0;
  }
  bool AnyOnParked() const {
    return pins_[lane_ ^ 1].load(std::memory_order_seq_cst) != 0;
  }
  // Returns how many threads sleep.  A count that lies at `but` has one less.
  int All(const std::atomic<int>* but) const {
    int all = 0;
    for (const auto* count : {&counts_[0], &counts_[1], &pins_[0], &pins_[1]}) {
      all += count->load(std::memory_order_seq_cst);
      if (but == count) --all;
    }
    return all;
  }
  // Returns whether any thread sleeps.
  bool Any() const {
    return (counts_[0].load(std::memory_order_seq_cst) |
            counts_[1].load(std::memory_order_seq_cst) |
            pins_[0].load(std::memory_order_seq_cst) |
            pins_[1].load(std::memory_order_seq_cst)) != 0;
  }
  // Wakes the threads that sleep on the word.
  //
  // seq_cst on both sides: a sleeper counts itself before it looks at the word
  // for the last time.  Wake changes the word before it looks at the count.
  void Wake(bool tx) {
    words_[tx].fetch_add(1, std::memory_order_seq_cst);
    if (counts_[tx].load(std::memory_order_seq_cst) > 0) {
      base::FutexWake(&words_[tx], 1 << 30, false);
    }
  }
  // Parks the lane: a thread that sleeps there sleeps on the parked lane from
  // now on.  `tx` and `rx`: the stream's latches.
  void Park(const base::Latch& tx, const base::Latch& rx) RC_REQUIRES(tx, rx) {
    lane_.Write(tx, rx) ^= 1;
  }

  // In the child of a fork.  This thread, too, may come back from a handler to
  // a sleep of the parent's.  Its count was there, and it takes nothing back
  // here.
  void OnForkChild() {
    for (int i = 0; i < 2; ++i) {
      counts_[i].store(0, std::memory_order_relaxed);
      pins_[i].store(0, std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<std::uint32_t> words_[2] = {};
  std::atomic<int> counts_[2] = {};
  // On the lane's own words, and on those of the parked lane.
  std::atomic<int> pins_[2] = {};
  base::Paired<int> lane_;  // the index of the lane's
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_SLEEPERS_H_
