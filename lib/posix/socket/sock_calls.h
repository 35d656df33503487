#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_CALLS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_CALLS_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

// What calls on TCP leave in their stream: which connection the object is, and
// how many calls are in the kernel without a mark.  Also how many calls there
// have been, and how far they have brought the connection.  While the engine
// has the stream, the Stream knows how far it is.
//
// A part of its Sock, on the cache line that each such call touches.  Any
// thread may call it, with or without a latch.
class PlainCalls {
 public:
  enum Way : std::uint8_t { kTx, kRx };

  // Returns which of its connections the object is now.  While no latch is held
  // the object may become another connection.
  std::uint32_t Life() const {
    return gate_.load(std::memory_order_relaxed) & kLife;
  }
  // Counts a call that is about to enter the kernel without a mark
  // (thread/call_marks.h).  Such a call is a wait, or its thread has no place
  // for a mark.  Returns what Leave and OfThisLife take.
  std::uint32_t Enter() {
    return gate_.fetch_add(1, std::memory_order_seq_cst);
  }
  // Takes Enter back.  Returns whether it was the last such call.  If a handler
  // jumps out of the call, its count stays until the life of the connection
  // ends.  A call that comes out after that finds another life, and takes
  // nothing back.
  bool Leave(std::uint32_t entered) {
    // seq_cst: pairs with TakeFromKernelLatched, which sets the mode and then
    // looks here.
    std::uint32_t before = gate_.load(std::memory_order_relaxed);
    do {
      if (((before ^ entered) & kLife) != 0) [[unlikely]]
        return false;
    } while (!gate_.compare_exchange_weak(before, before - 1,
                                          std::memory_order_seq_cst));
    return (before & kInside) == 1;
  }
  bool OfThisLife(std::uint32_t entered) const {
    return ((gate_.load(std::memory_order_relaxed) ^ entered) & kLife) == 0;
  }
  // Returns whether such a call is inside.
  bool Inside() const {
    return (gate_.load(std::memory_order_seq_cst) & kInside) != 0;
  }

  // Adds bytes that a call has moved.  The sum is exact: a switch names it.
  void Add(Way way, std::uint64_t bytes) {
    moved_[way].fetch_add(bytes, std::memory_order_relaxed);
  }
  // Counts a call that has moved bytes.  Returns the new count.  Threads that
  // come out of the kernel at once may lose one.
  std::uint32_t AddCall() {
    const std::uint32_t calls = count() + 1;
    count_.store(calls, std::memory_order_relaxed);
    return calls;
  }
  // Adds bytes for the statistics alone.  Threads that send at once may lose
  // some.
  void AddAbout(Way way, std::uint64_t bytes) {
    moved_[way].store(moved_[way].load(std::memory_order_relaxed) + bytes,
                      std::memory_order_relaxed);
  }
  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  std::uint64_t tx() const {
    return moved_[kTx].load(std::memory_order_relaxed);
  }
  std::uint64_t rx() const {
    return moved_[kRx].load(std::memory_order_relaxed);
  }
  std::uint64_t bytes() const { return tx() + rx(); }
  // Sets how far the connection is.
  void SetMoved(std::uint64_t tx, std::uint64_t rx) {
    moved_[kTx].store(tx, std::memory_order_relaxed);
    moved_[kRx].store(rx, std::memory_order_relaxed);
  }

  // Forgets all, for another connection.  That connection has another life: a
  // call that is still counted takes nothing back from it.
  void Reset() {
    NextLife();
    count_.store(0, std::memory_order_relaxed);
    SetMoved(0, 0);
  }
  // In the child of a fork.  A thread of the parent was inside, or this thread
  // was, and a handler has interrupted it there to fork.
  void OnForkChild() { NextLife(); }

 private:
  static constexpr std::uint32_t kOneLife = 1 << 18;
  static constexpr std::uint32_t kInside = kOneLife - 1;
  static constexpr std::uint32_t kLife = ~kInside;

  void NextLife() {
    gate_.store((gate_.load(std::memory_order_relaxed) + kOneLife) & kLife,
                std::memory_order_relaxed);
  }

  // The calls inside.  The bits above that count say which life of the object
  // they belong to.
  std::atomic<std::uint32_t> gate_{0};
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint64_t> moved_[2] = {};
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_CALLS_H_
