#include "lib/lane/rdma/receives.h"

#include <algorithm>
#include <utility>

namespace rcsock::lane::rdma {

void Receives::Open(Memory* memory, std::uint32_t most, std::uint32_t batch,
                    std::uint16_t generation) {
  tag_ = kReceive | std::uint64_t{generation} << kTagAt;
  if (memory != nullptr) {
    pages_ = std::make_unique<Block[]>((most + kOnPage - 1) / kOnPage);
  }
  memory_ = memory;
  most_ = most;
  batch_ = batch;
}

std::uint32_t Receives::More(std::uint32_t* first, verbs::Error* error) {
  const std::uint32_t left = most_ - count_;
  if (memory_ == nullptr) {
    *first = count_;
    return left;
  }
  if (taken_ == (most_ + kOnPage - 1) / kOnPage) {
    *error = {"ibv_post_recv", ENOMEM, {}};
    return 0;
  }
  Block page = memory_->Get(kPage, false, error);
  if (!page) return 0;
  *first = taken_ * kStride;
  pages_[taken_++] = std::move(page);
  return std::min(left, kOnPage);
}

void Receives::Fill(ibv_recv_wr* wrs, ibv_sge* sges) const {
  for (std::uint32_t i = 0; i < used_; ++i) {
    wrs[i] = {};
    wrs[i].wr_id = tag_ | slots_[i];
    wrs[i].next = i + 1 < used_ ? &wrs[i + 1] : nullptr;
    if (pages_ == nullptr) continue;
    sges[i] = {reinterpret_cast<std::uintptr_t>(At(slots_[i])), kSendMost,
               pages_[slots_[i] / kStride].lkey()};
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
  }
}

void Receives::Posted(std::uint32_t done) {
  std::copy(slots_ + done, slots_ + used_, slots_);
  used_ -= done;
}

}  // namespace rcsock::lane::rdma
