#ifndef RCSOCK_LIB_GPU_CUDA_CONTEXT_H_
#define RCSOCK_LIB_GPU_CUDA_CONTEXT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/critical.h"
#include "lib/base/latch.h"
#include "lib/base/no_cancel.h"
#include "lib/gpu/cuda.h"
#include "lib/gpu/memory.h"

namespace rcsock::gpu::cuda {

class CudaImport;
class CudaPages;
class CudaPipe;

// A context of the driver in which copies run, and pipes that nobody uses. A
// program may end the context at any time. Its objects are then gone, and calls
// that name them fail.
//
// Threads: any.
class ContextPipes {
 public:
  // Returns the object of the context that has `device`'s memory `at`. Null:
  // the memory has none, and *result says why.
  static std::shared_ptr<ContextPipes> Of(const Calls& calls, Pointer at,
                                          Device device, Result* result);
  ~ContextPipes();
  ContextPipes(const ContextPipes&) = delete;
  ContextPipes& operator=(const ContextPipes&) = delete;

  const Calls& calls() const { return calls_; }
  Context context() const { return context_; }
  Device device() const { return device_; }
  // Notes that the driver does not know the context any more, if `result` says
  // so. Returns `result`.
  Result Note(Result result);
  bool gone() const { return gone_.load(std::memory_order_relaxed); }

  Pipe* Take(int* error);
  void Return(Pipe* pipe);
  std::shared_ptr<HostPages> Pin(std::byte* at, std::size_t bytes);
  // One import serves all lanes of the context.
  std::shared_ptr<Import> Open(const Passed& passed, int fd);
  bool IsOpen(const Passed& passed);

 private:
  ContextPipes(const Calls& calls, Context context, Device device, bool primary)
      : calls_(calls), context_(context), device_(device), primary_(primary) {}

  static constexpr int kKept = 4;
  const Calls& calls_;
  const Context context_;
  const Device device_;
  const bool primary_;  // retained for this object
  std::atomic<bool> gone_{false};
  base::Latch latch_;
  std::array<CudaPipe*, kKept> free_ RC_GUARDED_BY(latch_){};
  std::vector<std::weak_ptr<CudaPages>> pages_ RC_GUARDED_BY(latch_);
  std::vector<std::weak_ptr<CudaImport>> imports_ RC_GUARDED_BY(latch_);
  // What threads have the driver open.
  struct Opening {
    const Passed& what;
    Opening* next;
  };
  Opening* openings_ RC_GUARDED_BY(latch_) = nullptr;
  std::atomic<std::uint32_t> opened_{0};  // changes when one is over

  std::shared_ptr<CudaImport> FindOpen(const Passed& passed)
      RC_REQUIRES(latch_);
  // Waits until no other thread has the driver open what has that handle, and
  // lists `own`.
  void BeginOpening(Opening* own) RC_REQUIRES(latch_);
  void EndOpening(const Opening* own) RC_REQUIRES(latch_);
  // Returns true if a lane may have that handle open for memory that the peer
  // has freed.
  bool HasHandle(const Passed& passed) RC_REQUIRES(latch_);
};

// Makes a context the thread's own for a few calls. No handler of the program
// runs meanwhile, and no cancellation unwinds the driver.
class Current {
 public:
  explicit Current(ContextPipes* of)
      : of_(of), result_(of->Note(of->calls().CtxPush(of->context()))) {}
  ~Current() {
    Context popped;
    if (result_ == kSuccess) of_->calls().CtxPop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  // kSuccess, or why the context cannot be used.
  Result result() const { return result_; }

 private:
  const base::Critical critical_;
  const base::NoCancel no_cancel_;
  ContextPipes* const of_;
  const Result result_;
};

int FindMemory(const void* at, std::size_t length,
               std::shared_ptr<Memory>* found);
// In the child of fork no object of the driver may be used or ended.
void ForkChildContexts();

}  // namespace rcsock::gpu::cuda

#endif  // RCSOCK_LIB_GPU_CUDA_CONTEXT_H_
