#ifndef RCSOCK_LIB_LANE_RDMA_MEMORY_H_
#define RCSOCK_LIB_LANE_RDMA_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/base/pin_count.h"
#include "lib/lane/rdma/slabs.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

class Memory;

// Registered memory, zeroed when it is handed out. Move-only. Its destructor
// gives the memory back.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { *this = static_cast<Block&&>(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block() { reset(); }
  void reset();

  explicit operator bool() const { return base_ != nullptr; }
  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  std::uint32_t lkey() const { return mr_->lkey; }
  std::uint32_t rkey() const { return mr_->rkey; }

 private:
  friend class Memory;
  Memory* memory_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  verbs::Mr mr_;
};

using base::PinCount;

// Memory of the program's that is registered, and its count, which ends behind
// the registration: a thread that finds room has it.
struct Registered {
  Registered() = default;
  // (A move into an object ends what it had in the same order.)
  Registered(Registered&&) noexcept = default;
  Registered& operator=(Registered&&) noexcept = default;
  ~Registered() { mr.reset(); }

  verbs::Mr mr;
  PinCount pin;
};

// The memory of one protection domain. Blocks are cut from slabs, so that
// thousands of lanes need few mappings. But each block has a registration of
// its own, for exactly its bytes and for as long as it is handed out. So a peer
// can reach the block that was made for it, and nothing else.
//
// Threads: any.
class Memory {
 public:
  static constexpr std::size_t kSmall = Slabs::kLeast;

  // `pd` outlives the memory, and the memory its blocks. `huge`: as in Slabs.
  Memory(ibv_pd* pd, bool huge) : pd_(pd), slabs_(huge) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // `remote`: the peer may write to the block. Empty: no memory, or no more may
  // be pinned.
  Block Get(std::size_t bytes, bool remote, verbs::Error* error);
  ibv_pd* pd() const { return pd_; }
  // How much the whole process may pin for the sake of speed.
  void SetBudget(std::uint64_t bytes) { budget_ = bytes; }
  // Returns whether a lane may have a block of `bytes`: one of the size of a
  // new lane's, or one within the budget. If not, calls the `refused` hook.
  bool MayGrow(std::size_t bytes) const;
  std::uint64_t pinned() const {
    return pinned_.load(std::memory_order_relaxed);
  }

  // What a lane pins besides its rings, on the device in use where this is
  // most.
  static void NoteLane(std::size_t bytes);
  static std::size_t OfLane();
  // `grown` is called when a block larger than an idle lane's is handed out,
  // `refused` when MayGrow says no. Any thread calls them, with latches held.
  static void SetHooks(void (*grown)(), void (*refused)());

 private:
  friend class Block;
  void Count(std::int64_t bytes);

  ibv_pd* const pd_;
  std::uint64_t budget_ = ~std::uint64_t{0};
  std::atomic<std::uint64_t> pinned_{0};
  Slabs slabs_;
};

// Where the answers of fences go, on iWARP. There the answer to a READ is a
// message that writes. So the peer's device needs the right to write, and gets
// the key. The sink is memory of its own, which holds nothing and which no
// thread looks at. Few lanes ask for the sink, and it pins a page, so the first
// lane that asks makes it.
//
// Threads: any.
class Sink {
 public:
  // Returns false if the sink cannot be had now. Once true, it stays true.
  bool Ready(Memory* memory);
  const Block& block() const { return block_; }  // when Ready

 private:
  static constexpr std::size_t kBytes = 64;
  std::atomic<bool> ready_{false};
  base::Latch latch_;
  Block block_;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_MEMORY_H_
