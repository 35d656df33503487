#ifndef RCSOCK_LIB_LANE_BOARD_H_
#define RCSOCK_LIB_LANE_BOARD_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/lane/poller.h"

namespace rcsock::lane {

// What the drains of sources have found, sorted by the bell that each lane is
// to ring. The owner of a bell takes its completions from here. One per
// process.
//
// Threads: any.
class Board {
 public:
  // A lane's place on the board, which is part of the lane.
  class Mark {
   private:
    friend class Board;
    // The board's latch guards all of these.
    void* cookie_ = nullptr;
    Mark* next_ = nullptr;
    Mark* prev_ = nullptr;
    std::uint32_t flags_ = 0;
    int bell_ = -1;  // the list that the mark is in; -1: none
  };

  explicit Board(Ringer* ringer) : ringer_(ringer) {}
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // From now on the mark's completions carry `cookie`; null: the mark has none.
  void SetCookie(Mark* mark, void* cookie);
  // Adds `flags` (kCompletion*) to what the mark reports on `bell`, and kicks
  // the bell if a thread sleeps there. Does nothing if the mark has no cookie.
  void Post(int bell, Mark* mark, std::uint32_t flags);
  // Returns up to `capacity` completions; never blocks. If there is nothing,
  // this costs one look at a counter.
  int Poll(int bell, Completion* out, int capacity) {
    if (count_[bell].value.load(std::memory_order_seq_cst) == 0) return 0;
    return PollSome(bell, out, capacity);
  }

 private:
  struct alignas(64) Count {
    std::atomic<int> value{0};
  };
  struct List {
    Mark* head = nullptr;
    Mark* tail = nullptr;
  };
  int PollSome(int bell, Completion* out, int capacity);
  void Unlink(Mark* mark) RC_REQUIRES(latch_);

  Ringer* const ringer_;
  base::Latch latch_;
  List lists_[kBells] RC_GUARDED_BY(latch_);
  Count count_[kBells];
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_BOARD_H_
