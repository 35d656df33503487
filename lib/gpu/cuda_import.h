#ifndef RCSOCK_LIB_GPU_CUDA_IMPORT_H_
#define RCSOCK_LIB_GPU_CUDA_IMPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/latch.h"
#include "lib/gpu/cuda_context.h"

namespace rcsock::gpu::cuda {

// Names to other processes what lies behind `at` in its allocation, `length`
// bytes at most. Returns 0 or an errno.
int PassMemory(ContextPipes* of, Pointer at, std::size_t length,
               Passed* passed);

// An allocation that a peer has passed. No driver opens memory of its own
// process: then this has the memory's own address.
class CudaImport final : public Import {
 public:
  // Null: the driver refuses.
  static std::shared_ptr<CudaImport> Make(ContextPipes* of,
                                          const Passed& passed);
  // Does not call the driver, see CudaPages.
  ~CudaImport() override { latch_.AssertUnshared(); }
  CudaImport(const CudaImport&) = delete;
  CudaImport& operator=(const CudaImport&) = delete;

  void End() override;
  const void* At(std::uint64_t offset, std::uint64_t length) const override;
  // Returns true if this has the mapping of `made` open for another allocation
  // of the peer's.
  bool IsOther(const CudaImport& made) const;

 private:
  CudaImport(ContextPipes* of, Pointer at, bool opened, std::uint64_t id)
      : opened_(opened), at_(at), id_(id), of_(of) {}
  // Sets left_ to what lies behind the address. Returns false if the driver
  // does not tell.
  bool Measure(const Calls& calls);
  bool OfParent() const {
    return forks_ != forks.load(std::memory_order_relaxed);
  }

  const bool opened_;  // and so to be closed
  const Pointer at_;
  const std::uint64_t id_;
  const unsigned forks_ = forks.load(std::memory_order_relaxed);
  std::uint64_t left_ = 0;
  // Held for the driver's call: the context does not end meanwhile.
  mutable base::Latch latch_;
  ContextPipes* of_ RC_GUARDED_BY(latch_);  // null: closed
};

}  // namespace rcsock::gpu::cuda

#endif  // RCSOCK_LIB_GPU_CUDA_IMPORT_H_
