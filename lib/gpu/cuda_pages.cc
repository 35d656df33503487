#include "lib/gpu/cuda_pages.h"

#include <new>
#include <utility>

#include "lib/base/log.h"

namespace rcsock::gpu::cuda {

std::shared_ptr<CudaPages> CudaPages::Make(ContextPipes* of, std::byte* at,
                                           std::size_t bytes) {
  base::PinCount pin;
  if (!pin.Take(bytes)) {
    RCSOCK_LOG(2, "gpu: %zu bytes of a ring are beyond the limit", bytes);
    return nullptr;
  }
  const Calls& calls = of->calls();
  const Current current(of);
  Result result = current.result();
  if (result == kSuccess) {
    result = calls.HostRegister(at, bytes, kRegisterPortable);
  }
  if (of->Note(result) != kSuccess) {
    RCSOCK_LOG(1, "gpu: the driver does not pin a ring: %d", result);
    return nullptr;
  }
  auto* const made = new (std::nothrow) CudaPages(of, at, std::move(pin));
  if (made != nullptr) {
    try {
      return std::shared_ptr<CudaPages>(made);  // deletes on failure
    } catch (const std::bad_alloc&) {
    }
  }
  calls.HostUnregister(at);
  return nullptr;
}

// Does not call the driver: the thread that gives up the last reference may be
// one that must not wait.
CudaPages::~CudaPages() {
  latch_.AssertUnshared();
  if (OfParent() || of_ != nullptr) pin_.Forget();
}

void CudaPages::End() {
  if (OfParent()) return;
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  if (of_ == nullptr) return;
  const Current current(of_);
  if (current.result() == kSuccess) of_->calls().HostUnregister(at_);
  live_.store(nullptr, std::memory_order_release);
  of_ = nullptr;
  pin_.reset();
}

}  // namespace rcsock::gpu::cuda
