#ifndef RCSOCK_LIB_GPU_CUDA_PIPE_H_
#define RCSOCK_LIB_GPU_CUDA_PIPE_H_

#include <array>
#include <cstddef>

#include "lib/base/pin_count.h"
#include "lib/gpu/cuda_context.h"

namespace rcsock::gpu::cuda {

// The slots are memory of this object's own, which the driver pins. Memory that
// the driver allocates would vanish with the program's context.
class CudaPipe final : public Pipe {
 public:
  // Null: *error says why. `of` outlives the pipe.
  static CudaPipe* Make(ContextPipes* of, int* error);
  // Requires that no copy is under way.
  ~CudaPipe() override;
  CudaPipe(const CudaPipe&) = delete;
  CudaPipe& operator=(const CudaPipe&) = delete;

  int NeedSlots() override;
  std::byte* slot(int index) const override {
    return base_ + static_cast<std::size_t>(index) * kSlotBytes;
  }
  int FromDevice(int slot, const void* from, std::size_t bytes,
                 std::byte* host) override;
  int ToDevice(int slot, void* to, std::size_t bytes,
               const std::byte* host) override;
  int OnDevices(int slot, void* to, const void* from,
                std::size_t bytes) override;
  bool Look(int slot, int* error) override;
  int Wait(int slot) override;
  // Waits for all copies. Returns false if one may still be under way.
  bool Settle();
  // Returns true in a child of the process that made the pipe.
  bool OfParent() const {
    return forks_ != forks.load(std::memory_order_relaxed);
  }

 private:
  explicit CudaPipe(ContextPipes* of) : of_(of) {}
  Result MakeObjects();
  template <class Copy>
  int Begin(int slot, Copy&& copy);

  ContextPipes* const of_;
  std::byte* base_ = nullptr;
  base::PinCount pin_;  // of the slots, if the driver has pinned them
  bool pinned_ = false;
  const unsigned forks_ = forks.load(std::memory_order_relaxed);
  Stream stream_ = nullptr;
  std::array<Event, kSlots> events_{};
  std::array<bool, kSlots> busy_{};
  // No event reports the end of the slot's copy.  The end of all work of the
  // stream does.
  std::array<bool, kSlots> no_event_{};
};

}  // namespace rcsock::gpu::cuda

#endif  // RCSOCK_LIB_GPU_CUDA_PIPE_H_
