#ifndef RCSOCK_LIB_POSIX_SHARING_HOLDERS_H_
#define RCSOCK_LIB_POSIX_SHARING_HOLDERS_H_

#include <atomic>
#include <cstdint>

#include "lib/posix/sharing/claim.h"

namespace rcsock::posix {

// What the processes that hold one connection know together: how many holders
// there are, and how far those that have left had brought the connection.  A
// family of processes has one table, in memory that fork shares and exec can
// pass on.
//
// Any thread of these processes may read and write a Holding: all is atomic.
//
// A holder counts the bytes that it moves, and adds them here later.  So the
// offset of the connection is the sum here, plus what each holder has not
// added.  A sole holder knows the offset.  A process that is killed leaves its
// count.  Then no process is alone any more, and the connection stays on TCP.
struct Holding {
  // Bit 31: a holder has done to the connection what no lane can follow.
  static constexpr std::uint32_t kSpoilt = 1u << 31;
  // Bit 30: a process that is not counted may hold it, for good.
  static constexpr std::uint32_t kUncounted = 1u << 30;
  static constexpr std::uint32_t kMarks = kSpoilt | kUncounted;
  // Bits 16 to 29: the children of fork that have not used their copy yet.  A
  // child that ends by a signal stays counted.
  static constexpr std::uint32_t kOneHidden = 1u << 16;
  static constexpr std::uint32_t kHidden = kUncounted - kOneHidden;
  static constexpr std::uint32_t kMostHidden = 8192;
  std::atomic<std::uint32_t> count;  // 0: free
  std::atomic<std::uint32_t> role;
  std::atomic<std::uint64_t> inode;
  std::atomic<std::uint64_t> tx;
  std::atomic<std::uint64_t> rx;
  // Whose the stream is, for its hidden copies.
  Claim claim;
  // The process whose engine may have the stream while there are hidden copies,
  // by the number that its own PID namespace has for it.
  std::atomic<std::uint32_t> owner;
  // The owner's descriptor of bytes that were read ahead, plus 1; 0: none.
  std::atomic<std::uint32_t> unread;
  std::uint32_t unused[5];

  // Returns whether there is one holder, and no mark.
  bool Alone() const { return count.load(std::memory_order_seq_cst) == 1; }
  // Returns whether there is one holder, whatever was done to the connection.
  bool OfOne() const {
    return (count.load(std::memory_order_seq_cst) & ~kSpoilt) == 1;
  }
  // Returns whether the caller is the one holder, and there is no mark.
  // `owns`: it has made the hidden copies, if there are any, and so may have
  // the stream from the kernel.
  bool AloneIs(bool owns) const;
  // Returns whether there are several holders and hidden copies.
  bool OfSeveral() const {
    return (count.load(std::memory_order_seq_cst) & ~kMarks) > 1;
  }
  // Takes one holder away.  The last one frees the place.
  void Leave() { Less(1); }
  // Counts one more hidden copy.  Returns false, and counts none, if there are
  // too many, or if no process has the connection any more.
  bool Hide();
  // Returns false if Hide() could soon fail for lack of room: threads may fork
  // at once.
  bool MayHideMore() const {
    return (count.load() & kHidden) / kOneHidden < kMostHidden - 64;
  }
  // Takes a hidden copy away.
  void Unhide() { Less(kOneHidden); }
  // Makes a hidden copy a holder, which is to ask `claim` then.
  void Use() { count.fetch_add(1 - kOneHidden, std::memory_order_seq_cst); }

 private:
  void Less(std::uint32_t what);
};

// Returns the number of a new Holding with one holder, or -1.
int MakeHolding();
// Returns the Holding of that number, or null.
Holding* FindHolding(int number);
// Returns the descriptor of the table, or -1 if exec cannot pass it on.
int HoldingsFd();
// Uses the table that the program before this one has left, if `fd` is a table.
// Returns true if so: then `fd` is this function's.  Requires that no Holding
// has been made yet.
bool TakeHoldings(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_HOLDERS_H_
