#ifndef RCSOCK_LIB_BASE_PIN_COUNT_H_
#define RCSOCK_LIB_BASE_PIN_COUNT_H_

#include <cstddef>
#include <cstdint>

namespace rcsock::base {

// Memory that a device may reach: an RDMA device's queues and rings, the
// program's own memory, host memory for the copies of a GPU. While an object
// lives, its memory counts within one limit.
//
// Threads: any.
class PinCount {
 public:
  PinCount() = default;
  PinCount(PinCount&& other) noexcept {
    *this = static_cast<PinCount&&>(other);
  }
  PinCount& operator=(PinCount&& other) noexcept;
  ~PinCount() { reset(); }
  // False: no more may be pinned.
  bool Take(std::size_t bytes);
  // Counts what is pinned already.
  void Count(std::size_t bytes);
  void reset();
  // For a child of fork, whose parent has pinned the memory.
  void Forget() { bytes_ = 0; }

  // The limit of all that the process pins; 0: none but the kernel's.
  static void SetLimit(std::uint64_t bytes);
  // What the process has pinned, now and at most.
  static std::uint64_t Total();
  static std::uint64_t Peak();
  // Counts what no object of this class has.
  static void Add(std::int64_t bytes);
  // In the child of fork, which has pinned nothing yet.
  static void ForkChild();

 private:
  std::size_t bytes_ = 0;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_PIN_COUNT_H_
