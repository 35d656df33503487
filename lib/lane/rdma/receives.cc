#include "lib/lane/rdma/receives.h"

#include <algorithm>

namespace rcsock::lane::rdma {

bool Receives::Open(Memory* memory, std::uint32_t count, std::uint32_t batch,
                    verbs::Error* error) {
  count_ = count;
  batch_ = batch;
  if (memory == nullptr) return true;
  const std::size_t bytes = (count * kBuffer + 4095) / 4096 * 4096;
  buffers_ = memory->Get(bytes, false, error);
  return static_cast<bool>(buffers_);
}

void Receives::Fill(ibv_recv_wr* wrs, ibv_sge* sges) const {
  for (std::uint32_t i = 0; i < used_; ++i) {
    wrs[i] = {};
    wrs[i].wr_id = kReceive | slots_[i];
    wrs[i].next = i + 1 < used_ ? &wrs[i + 1] : nullptr;
    if (!buffers_) continue;
    sges[i] = {reinterpret_cast<std::uintptr_t>(At(slots_[i])), kSendMost,
               buffers_.lkey()};
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
  }
}

void Receives::Posted(std::uint32_t done) {
  std::copy(slots_ + done, slots_ + used_, slots_);
  used_ -= done;
}

}  // namespace rcsock::lane::rdma
