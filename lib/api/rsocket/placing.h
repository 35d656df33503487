#ifndef RCSOCK_LIB_API_RSOCKET_PLACING_H_
#define RCSOCK_LIB_API_RSOCKET_PLACING_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "lib/include/rcsock/rcsock.h"

namespace rcsock::rsocket {

// The writes to the peer's memory that an RDMA device has been given and that
// are not known to have arrived. Their bytes are kept in registered memory,
// from which the device sends them. If the lane dies, they are sent again from
// there, in order: so the last write wins on the peer's side too.
class Placing {
 public:
  struct Write {
    std::uint64_t offset;  // in the mappings
    const unsigned char* from;
    std::size_t length;
    std::uint64_t number;  // counts all that this stream has placed, from 1
    std::size_t skipped;   // bytes of the memory before it
    rcs_exposure where;
    std::int64_t ticket;
  };

  Placing() = default;
  ~Placing() { Release(); }
  Placing(const Placing&) = delete;
  Placing& operator=(const Placing&) = delete;

  // Behind the bytes of each write lies its number, which is placed as well.
  static constexpr std::size_t kNumberBytes = sizeof(std::uint64_t);

  // Returns room for up to `want` bytes in a row, and a number; null: none now.
  // The caller may fill it and then call Add.
  unsigned char* Room(std::size_t want, std::size_t* have);
  void Add(const Write& write);
  const Write& front() const { return writes_.front(); }
  void Pop();
  bool empty() const { return writes_.empty(); }
  // Returns true if there is no memory for it. There will be none later.
  bool refused() const { return refused_; }
  void Refuse() { refused_ = true; }
  void Release();

 private:
  std::deque<Write> writes_;
  unsigned char* memory_ = nullptr;
  std::size_t begin_ = 0;  // of the oldest write
  std::size_t used_ = 0;   // with what was skipped at the end
  std::size_t skip_ = 0;   // by the last Room
  bool refused_ = false;
};

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_PLACING_H_
