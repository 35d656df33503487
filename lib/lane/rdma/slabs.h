#ifndef RCSOCK_LIB_LANE_RDMA_SLABS_H_
#define RCSOCK_LIB_LANE_RDMA_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/latch.h"

namespace rcsock::lane::rdma {

// Memory for blocks, cut from slabs of 2 MiB. All blocks of a slab have one
// size, a power of two from kLeast to kMost. A larger block is a mapping of its
// own.
//
// Huge pages. A device keeps the addresses of the pages that it reaches in a
// cache of some thousand entries. A ring in one huge page takes one entry,
// where ordinary pages would take 256. But a huge page takes 2 MiB of memory,
// however little is used. So the first slab of small blocks, which is all that
// most processes have, is of ordinary pages.
//
// Threads: any.
class Slabs {
 public:
  static constexpr std::size_t kSlab = 2 * 1024 * 1024;
  static constexpr std::size_t kLeast = 16 * 1024;
  static constexpr std::size_t kMost = kSlab / 2;
  static constexpr int kClasses = 7;
  static_assert(kLeast << (kClasses - 1) == kMost);

  // `huge`: whether huge pages are of use, as on devices in hardware. If they
  // are not, a block larger than kLeast is a mapping of its own.
  explicit Slabs(bool huge) : huge_(huge) {}
  ~Slabs();
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  // Returns zeroed memory. Null: there is none.
  std::byte* Take(std::size_t bytes);
  // Gives back what Take has returned for so many bytes.
  void Give(std::byte* base, std::size_t bytes);
  // How many slabs there are, for tests.
  std::size_t slabs() const;

 private:
  struct Slab {
    std::byte* base;
    std::size_t block;
    std::uint32_t used;
  };
  bool Shares(std::size_t bytes) const {
    return bytes <= kLeast || (huge_ && bytes <= kMost);
  }
  // The class of blocks, kLeast << class, that has room for so many bytes.
  static int ClassOf(std::size_t bytes);
  bool AddSlab(int size_class) RC_REQUIRES(latch_);
  Slab* SlabOf(const std::byte* block) RC_REQUIRES(latch_);

  const bool huge_;
  mutable base::Latch latch_;
  std::vector<Slab> slabs_ RC_GUARDED_BY(latch_);
  std::vector<std::byte*> free_[kClasses] RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_SLABS_H_
