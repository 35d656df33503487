#ifndef RCSOCK_LIB_LANE_SHM_PASSING_H_
#define RCSOCK_LIB_LANE_SHM_PASSING_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/foreign_fd.h"
#include "lib/base/latch.h"
#include "lib/gpu/memory.h"

namespace rcsock::lane::shm {

// An offer's state is one word, which both ends change by compare and swap. So
// one of them decides, at any moment, how many of the bytes the receiver has
// taken, and neither waits for the other:
//
//   63     the offer is open
//   62-40  its number; the next offer has another
//   39-0   how many of its bytes the receiver has taken
struct OfferWord {
  bool open = false;
  std::uint32_t number = 0;
  std::uint64_t taken = 0;

  static constexpr int kNumberAt = 40;
  static constexpr std::uint32_t kNumbers = 1u << 23;
  static constexpr std::uint64_t kMost = std::uint64_t{1} << kNumberAt;

  constexpr std::uint64_t Encode() const {
    return std::uint64_t{open} << 63 |
           static_cast<std::uint64_t>(number % kNumbers) << kNumberAt |
           (taken & (kMost - 1));
  }
  static constexpr OfferWord Decode(std::uint64_t word) {
    return {word >> 63 != 0,
            static_cast<std::uint32_t>(word >> kNumberAt) % kNumbers,
            word & (kMost - 1)};
  }
};

// The sender's side. The tx latch guards it.
struct OwnOffer {
  std::uint32_t number = 0;
  std::uint64_t length = 0;
  std::uint64_t taken = 0;  // of the last offer, once that is closed
  bool open = false;
  // Set with the offer. `quiet`: starved_ is set, and the peer does not know.
  // `made`: since BeginFill.
  bool quiet = false;
  bool made = false;
};

// What a receiver has seen of the peer's offer.
struct SeenOffer {
  std::uint64_t word = 0;
  gpu::Passed what;
};

// What a side that looks for offers writes to ControlLine::takes. Only a peer
// that reads it sends MEMORY.
constexpr std::uint32_t kTakesOffers = 2;

// Descriptors of the peer's allocations, which have come on the link's socket
// (MEMORY) and are not open yet: the last few.
//
// Threads: any.
class Memories {
 public:
  static constexpr std::size_t kMost = 16;

  // `fd` is a peer's, and may be anything.
  void Put(std::uint64_t id, base::ForeignFd fd);
  // Null: it has not come, or is too old, or was dropped.
  std::shared_ptr<const base::ForeignFd> Find(std::uint64_t id);
  void Drop(std::uint64_t id);
  // Runs in a child of fork, which does not use them: closes the numbers, and
  // frees nothing. Another thread of the parent may have held the latch.
  void CloseInherited();

 private:
  struct One {
    std::uint64_t id = 0;
    std::shared_ptr<base::ForeignFd> fd;
  };
  base::Latch latch_;
  std::array<One, kMost> all_ RC_GUARDED_BY(latch_);
  std::size_t next_ RC_GUARDED_BY(latch_) = 0;
};

// The allocations whose descriptors a lane has sent, as many as its peer keeps
// open (Imports). Only the thread that fills the ring uses it.
struct SentMemories {
  bool Has(std::uint64_t id) const {
    return id != 0 && std::find(ids.begin(), ids.end(), id) != ids.end();
  }
  void Add(std::uint64_t id) { ids[next++ % ids.size()] = id; }
  // The peer has not taken anything of it: it may not have it any more.
  void Forget(std::uint64_t id) {
    std::replace(ids.begin(), ids.end(), id, std::uint64_t{0});
  }

  std::array<std::uint64_t, 4> ids{};
  std::size_t next = 0;
};

// The peer's allocations that one lane has open: the last few, since opening
// one takes long. Only the thread that drains the ring uses it.
class Imports {
 public:
  // `fd` is the peer's descriptor, or -1. Null: the driver refuses.
  std::shared_ptr<gpu::Import> Find(gpu::Memory* memory,
                                    const gpu::Passed& what, int fd);
  void End();
  // Drops the descriptors that have come for what has been open here. One may
  // have come late: another lane had the allocation open already.
  void DropLate(Memories* memories) const {
    for (const One& one : all_) {
      if (one.id != 0) memories->Drop(one.id);
    }
  }
  // The context that has refused one.
  const void* refused = nullptr;

 private:
  struct One {
    const void* context = nullptr;
    std::uint64_t id = 0;
    std::byte handle[sizeof gpu::Passed::handle];
    std::shared_ptr<gpu::Import> import;
  };
  std::array<One, 4> all_{};
  std::size_t next_ = 0;
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_PASSING_H_
