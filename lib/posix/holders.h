#ifndef RCSOCK_LIB_POSIX_HOLDERS_H_
#define RCSOCK_LIB_POSIX_HOLDERS_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

// What the processes that hold one connection know of it together: how many
// they are, and how far it had come by those who have left.  In memory that
// fork shares and exec can pass on, one table for a family of processes.
//
// A holder counts the bytes that it moves; what it has not told yet is its own.
// So the offset of the connection is what is told here and what each holder has
// not told, and who holds it alone knows it.
//
// A process that dies without a word leaves its count: then nobody is alone any
// more, and the connection stays on TCP.
struct Holding {
  // Bit 31: somebody has done to the connection what no lane can follow.
  static constexpr std::uint32_t kSpoilt = 1u << 31;
  // Bit 30: a process that is not counted may hold it, for good.
  static constexpr std::uint32_t kUncounted = 1u << 30;
  static constexpr std::uint32_t kMarks = kSpoilt | kUncounted;
  std::atomic<std::uint32_t> count;  // 0: free
  std::atomic<std::uint32_t> role;
  std::atomic<std::uint64_t> inode;
  std::atomic<std::uint64_t> tx;
  std::atomic<std::uint64_t> rx;
  std::uint64_t unused[4];

  // One holder, and no mark.
  bool Alone() const { return count.load(std::memory_order_seq_cst) == 1; }
  // One holder, whatever has been done to the connection.
  bool OfOne() const {
    return (count.load(std::memory_order_seq_cst) & ~kSpoilt) == 1;
  }
  // One holder fewer.
  void Leave();
};

// A new one of one holder: its number, or -1.
int MakeHolding();
// Null: no such number.
Holding* FindHolding(int number);
// The descriptor of the table; -1: nothing that exec could pass on.
int HoldingsFd();
// Uses the table of the program that this one was executed by, if it is one.
// (Only before the first MakeHolding.)  Then `fd` is this process's.
bool TakeHoldings(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_HOLDERS_H_
