#ifndef RCSOCK_LIB_LANE_RDMA_RECEIVES_H_
#define RCSOCK_LIB_LANE_RDMA_RECEIVES_H_

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/no_cancel.h"
#include "lib/lane/rdma/layout.h"
#include "lib/lane/rdma/memory.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// Set in a receive's wr_id. The opcode of a failed completion means nothing,
// and this tells a receive from a send.
constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;

inline int PostTo(ibv_qp* queue, ibv_recv_wr* wrs, ibv_recv_wr** bad) {
  return ibv_post_recv(queue, wrs, bad);
}
inline int PostTo(ibv_srq* queue, ibv_recv_wr* wrs, ibv_recv_wr** bad) {
  return ibv_post_srq_recv(queue, wrs, bad);
}

// The receives of one queue, a device's shared queue or a QP's own. Receives
// whose completions have been handled are posted again a batch at a time.
class Receives {
 public:
  // How many may wait to be posted.
  static constexpr std::uint32_t kSlots = 64;

  // `most`: how many receives there may be. `memory`: on iWARP, where each has
  // a buffer for what comes in place of an immediate; else null. `generation`:
  // of a queue that replaces another. Throws bad_alloc.
  void Open(Memory* memory, std::uint32_t most, std::uint32_t batch,
            std::uint16_t generation = 0);
  // Whether a completion of this wr_id belongs to one of these.
  bool Has(std::uint64_t wr_id) const {
    return ((wr_id ^ tag_) >> kTagAt) == 0;
  }
  // Posts more receives, until there are at least `count`. Receives with
  // buffers come by the page, so a process pins what its lanes need. False:
  // *error.
  template <typename Queue>
  bool Extend(Queue* queue, std::uint32_t count, verbs::Error* error) {
    while (count_ < count) {
      std::uint32_t first = 0;
      const std::uint32_t more = More(&first, error);
      if (more == 0) return false;
      for (std::uint32_t i = 0; i < more; ++i) {
        if (used_ == kSlots) Post(queue);
        Used(first + i);
      }
      Post(queue);
      if (used_ != 0) {
        *error = {"ibv_post_recv", ENOMEM, {}};
        return false;
      }
      count_ += more;
    }
    return true;
  }

  const std::byte* At(std::uint32_t slot) const {
    return pages_[slot / kStride].base() + slot % kStride * kBuffer;
  }
  void Used(std::uint32_t slot) {
    if (used_ < kSlots) slots_[used_++] = slot;
  }
  std::uint32_t count() const { return count_; }
  bool Due() const { return used_ >= batch_; }
  // To an ibv_qp or an ibv_srq. What the queue does not take stays for the next
  // call.
  template <typename Queue>
  void Post(Queue* queue) {
    if (used_ == 0) return;
    ibv_recv_wr wrs[kSlots];
    ibv_sge sges[kSlots];
    Fill(wrs, sges);
    ibv_recv_wr* bad = nullptr;
    const base::NoCancel no_cancel;
    const bool all = PostTo(queue, wrs, &bad) == 0 || bad == nullptr;
    Posted(all ? used_ : static_cast<std::uint32_t>(bad - wrs));
  }

 private:
  static constexpr std::size_t kBuffer = kSlotBytes;  // for the longest SEND
  static constexpr std::size_t kPage = 4096;
  static constexpr std::uint32_t kOnPage = kPage / kBuffer;
  // The numbers of a page begin so far behind those of the page before: no
  // division.
  static constexpr std::uint32_t kStride = 64;
  static_assert(kOnPage <= kStride);

  // Makes more receives, with their memory. Returns how many, and the first
  // one's number; 0: *error.
  std::uint32_t More(std::uint32_t* first, verbs::Error* error);
  void Fill(ibv_recv_wr* wrs, ibv_sge* sges) const;
  void Posted(std::uint32_t done);

  static constexpr int kTagAt = 32;  // in a wr_id, above the slot

  std::uint64_t tag_ = kReceive;
  Memory* memory_ = nullptr;
  std::unique_ptr<Block[]> pages_;  // null without memory_
  std::uint32_t taken_ = 0;         // how many of these are in use
  std::uint32_t most_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t batch_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t slots_[kSlots];
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_RECEIVES_H_
