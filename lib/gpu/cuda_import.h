#ifndef RCSOCK_LIB_GPU_CUDA_IMPORT_H_
#define RCSOCK_LIB_GPU_CUDA_IMPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/gpu/cuda_context.h"

namespace rcsock::gpu::cuda {

// Names to other processes what lies behind `at` in its allocation, `length`
// bytes at most. Returns 0 or an errno.
int PassMemory(ContextPipes* of, Pointer at, std::size_t length,
               Passed* passed);
// Makes a descriptor of the allocation around `at`. Returns 0 or an errno.
int MakeDescriptor(ContextPipes* of, Pointer at, base::UniqueFd* fd);

// An allocation that a peer has passed. No driver opens memory of its own
// process: then this has the memory's own address.
class CudaImport final : public Import {
 public:
  // Null: the driver refuses. The import has one user.
  static std::shared_ptr<CudaImport> Make(ContextPipes* of,
                                          const Passed& passed, int fd);
  // Does not call the driver, see CudaPages.
  ~CudaImport() override { latch_.AssertUnshared(); }
  CudaImport(const CudaImport&) = delete;
  CudaImport& operator=(const CudaImport&) = delete;

  void End() override;
  // Closes it, whoever uses it.
  void Close();
  // Counts one more user. Returns false if it is closed.
  bool Use();
  // Returns true if it is what the peer has passed, and nobody closes it.
  // Waits for nothing, as HasHandle does not.
  bool Is(const Passed& passed) const;
  // Returns true if the driver may have that handle open for another allocation
  // of the peer's.
  bool HasHandle(const Passed& passed) const;
  const void* At(std::uint64_t offset, std::uint64_t length) const override;

 private:
  // How it came here, and so how it goes.
  enum class How : std::uint8_t { kOwn, kOpened, kMapped };

  CudaImport(ContextPipes* of, const Passed& passed, Pointer at, How how)
      : passed_(passed), how_(how), at_(at), of_(of) {}
  // Sets left_ to what lies behind the address. Returns false if the driver
  // does not tell.
  bool Measure(const Calls& calls);
  static void LetGo(const Calls& calls, Pointer at, std::uint64_t size,
                    How how);
  void CloseLatched() RC_REQUIRES(latch_);
  enum class State : std::uint8_t { kOpen, kCloses, kClosed };
  bool OfParent() const {
    return forks_ != forks.load(std::memory_order_relaxed);
  }

  const Passed passed_;
  const How how_;
  const Pointer at_;
  const unsigned forks_ = forks.load(std::memory_order_relaxed);
  std::uint64_t left_ = 0;
  // Held for the driver's call: the context does not end meanwhile.
  mutable base::Latch latch_;
  ContextPipes* of_ RC_GUARDED_BY(latch_);  // null: closed
  int users_ RC_GUARDED_BY(latch_) = 1;
  std::atomic<State> state_{State::kOpen};  // written under latch_
};

}  // namespace rcsock::gpu::cuda

#endif  // RCSOCK_LIB_GPU_CUDA_IMPORT_H_
