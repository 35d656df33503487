#ifndef RCSOCK_LIB_GPU_CUDA_PAGES_H_
#define RCSOCK_LIB_GPU_CUDA_PAGES_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "lib/base/latch.h"
#include "lib/base/pin_count.h"
#include "lib/gpu/cuda_context.h"

namespace rcsock::gpu::cuda {

// Memory of the host that the driver has pinned for a context. The pages end
// with the context, or with the program's last registered buffer there,
// whichever ends first.
class CudaPages final : public HostPages {
 public:
  // Null: the driver refuses, or no more may be pinned.
  static std::shared_ptr<CudaPages> Make(ContextPipes* of, std::byte* at,
                                         std::size_t bytes);
  ~CudaPages() override;
  CudaPages(const CudaPages&) = delete;
  CudaPages& operator=(const CudaPages&) = delete;

  void End() override;
  bool pinned(const void* context) const override {
    return !OfParent() && live_.load(std::memory_order_acquire) == context;
  }

 private:
  CudaPages(ContextPipes* of, std::byte* at, base::PinCount pin)
      : at_(at), live_(of), of_(of), pin_(std::move(pin)) {}
  bool OfParent() const {
    return forks_ != forks.load(std::memory_order_relaxed);
  }

  std::byte* const at_;
  const unsigned forks_ = forks.load(std::memory_order_relaxed);
  std::atomic<const void*> live_;
  // Held for the driver's call: the context does not end meanwhile.
  base::Latch latch_;
  ContextPipes* of_ RC_GUARDED_BY(latch_);  // null: ended
  base::PinCount pin_ RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::gpu::cuda

#endif  // RCSOCK_LIB_GPU_CUDA_PAGES_H_
