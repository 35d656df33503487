#ifndef RCSOCK_LIB_LANE_RDMA_RECEIVES_H_
#define RCSOCK_LIB_LANE_RDMA_RECEIVES_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/no_cancel.h"
#include "lib/lane/rdma/layout.h"
#include "lib/lane/rdma/memory.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// In a receive's wr_id, so that a failed completion, whose opcode means
// nothing, can be told from a send's.
constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;

inline int PostTo(ibv_qp* queue, ibv_recv_wr* wrs, ibv_recv_wr** bad) {
  return ibv_post_recv(queue, wrs, bad);
}
inline int PostTo(ibv_srq* queue, ibv_recv_wr* wrs, ibv_recv_wr** bad) {
  return ibv_post_srq_recv(queue, wrs, bad);
}

// The receives of one queue, a device's shared one or a QP's own.  Those whose
// completions have been handled are posted again a batch at a time.
class Receives {
 public:
  // So many may wait to be posted.
  static constexpr std::uint32_t kSlots = 64;

  // `memory`: on iWARP, where each has a buffer, for what comes in place of an
  // immediate; else null.  False: *error.
  bool Open(Memory* memory, std::uint32_t count, std::uint32_t batch,
            verbs::Error* error);
  // The first time.  False: *error.
  template <typename Queue>
  bool PostAll(Queue* queue, verbs::Error* error) {
    for (std::uint32_t i = 0; i < count_; ++i) {
      Used(i);
      if (used_ == kSlots) Post(queue);
    }
    Post(queue);
    if (used_ == 0) return true;
    *error = {"ibv_post_recv", ENOMEM, {}};
    return false;
  }

  const std::byte* At(std::uint32_t slot) const {
    return buffers_.base() + slot * kBuffer;
  }
  void Used(std::uint32_t slot) {
    if (used_ < kSlots) slots_[used_++] = slot;
  }
  bool Full() const { return used_ == kSlots; }
  bool Due() const { return used_ >= batch_; }
  // To an ibv_qp or an ibv_srq.  What the queue does not take stays for the
  // next time.
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

  void Fill(ibv_recv_wr* wrs, ibv_sge* sges) const;
  void Posted(std::uint32_t done);

  Block buffers_;
  std::uint32_t count_ = 0;
  std::uint32_t batch_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t slots_[kSlots];
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_RECEIVES_H_
