#include "tools/rcsock/doctor/lab_memory.h"

#include <atomic>
#include <utility>

#include "lib/gpu/memory.h"
#include "lib/lane/rdma/device_memory.h"
#include "tools/rcsock/gpu_memory.h"

namespace rcsock::tools {
namespace {

class HostLabMemory final : public LabMemory {
 public:
  void* at() override { return bytes_.data(); }
  verbs::Mr Register(ibv_pd* pd, int access, verbs::Error* error) override {
    return verbs::Register(pd, bytes_.data(), kBytes, access, error);
  }
  std::string Put(const Bytes& bytes) override {
    bytes_ = bytes;
    return "";
  }
  std::string Take(Bytes* bytes) override {
    // The device writes this memory: look again each time.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    *bytes = bytes_;
    return "";
  }

 private:
  alignas(4096) Bytes bytes_{};
};

// It goes with the process.
class GpuLabMemory final : public LabMemory {
 public:
  std::string Make(int ordinal) {
    const std::string bad = gpu_.Make(ordinal, kAllocated);
    if (!bad.empty()) return bad;
    if (gpu::Memory::Find(at(), kBytes, &memory_) != 0 || memory_ == nullptr) {
      return "rcsock does not know the GPU's memory";
    }
    memory_->BeforeSharing(at());
    return "";
  }
  void* at() override { return gpu_.at(); }
  verbs::Mr Register(ibv_pd* pd, int access, verbs::Error* error) override {
    return lane::rdma::RegisterDevice(pd, *memory_, at(), kBytes, access,
                                      error);
  }
  std::string Put(const Bytes& bytes) override {
    return gpu_.Put(bytes.data(), kBytes);
  }
  std::string Take(Bytes* bytes) override {
    gpu_.Flush();
    return gpu_.Take(bytes->data(), kBytes);
  }

 private:
  // Whole pages of a GPU: no other memory shares them.
  static constexpr std::size_t kAllocated = 2 * 1024 * 1024;
  GpuMemory gpu_;
  std::shared_ptr<gpu::Memory> memory_;
};

}  // namespace

std::unique_ptr<LabMemory> LabMemory::Make(int gpu, std::string* bad) {
  bad->clear();
  if (gpu < 0) return std::make_unique<HostLabMemory>();
  auto memory = std::make_unique<GpuLabMemory>();
  *bad = memory->Make(gpu);
  return bad->empty() ? std::move(memory) : nullptr;
}

}  // namespace rcsock::tools
