#include "tools/rcsock/doctor/lab_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/gpu/cuda.h"
#include "lib/gpu/memory.h"
#include "lib/lane/rdma/device_memory.h"

namespace rcsock::tools {
namespace {

namespace cuda = gpu::cuda;

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

// The calls of the driver that a program makes, beside those of lib/gpu.
struct Driver {
  cuda::Result (*Init)(unsigned) = nullptr;
  cuda::Result (*DeviceGet)(cuda::Device*, int) = nullptr;
  cuda::Result (*Retain)(cuda::Context*, cuda::Device) = nullptr;
  cuda::Result (*Push)(cuda::Context) = nullptr;
  cuda::Result (*Alloc)(cuda::Pointer*, std::size_t) = nullptr;
  cuda::Result (*ToDevice)(cuda::Pointer, const void*, std::size_t) = nullptr;
  cuda::Result (*ToHost)(void*, cuda::Pointer, std::size_t) = nullptr;
  // Older drivers lack it, and GPUs that need it are none of theirs.
  cuda::Result (*Flush)(int, int) = nullptr;

  // Returns "", or what is missing.
  std::string Load() {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return "there is no libcuda.so.1";
    const auto find = [&](const char* name, auto* slot) {
      *slot = reinterpret_cast<std::remove_pointer_t<decltype(slot)>>(
          ::dlsym(library, name));
      return *slot != nullptr;
    };
    find("cuFlushGPUDirectRDMAWrites", &Flush);
    const bool all =
        find("cuInit", &Init) && find("cuDeviceGet", &DeviceGet) &&
        find("cuDevicePrimaryCtxRetain", &Retain) &&
        find("cuCtxPushCurrent_v2", &Push) && find("cuMemAlloc_v2", &Alloc) &&
        find("cuMemcpyHtoD_v2", &ToDevice) && find("cuMemcpyDtoH_v2", &ToHost);
    return all ? "" : "the driver lacks a call";
  }
};

std::string Said(const char* call, cuda::Result result) {
  return result == cuda::kSuccess
             ? ""
             : fmt::format("{}: CUDA error {}", call, result);
}

// It goes with the process.
class GpuLabMemory final : public LabMemory {
 public:
  std::string Make(int ordinal) {
    std::string bad = driver_.Load();
    if (!bad.empty()) return bad;
    cuda::Device device = 0;
    cuda::Context context = nullptr;
    bad = Said("cuInit", driver_.Init(0));
    if (bad.empty()) {
      bad = Said("cuDeviceGet", driver_.DeviceGet(&device, ordinal));
    }
    if (bad.empty()) {
      bad = Said("cuDevicePrimaryCtxRetain", driver_.Retain(&context, device));
    }
    if (bad.empty()) bad = Said("cuCtxPushCurrent", driver_.Push(context));
    if (bad.empty()) bad = Said("cuMemAlloc", driver_.Alloc(&at_, kAllocated));
    if (!bad.empty()) return bad;
    if (gpu::Memory::Find(at(), kBytes, &memory_) != 0 || memory_ == nullptr) {
      return "rcsock does not know the GPU's memory";
    }
    memory_->BeforeSharing(at());
    return "";
  }
  void* at() override {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at_));
  }
  verbs::Mr Register(ibv_pd* pd, int access, verbs::Error* error) override {
    return lane::rdma::RegisterDevice(pd, *memory_, at(), kBytes, access,
                                      error);
  }
  std::string Put(const Bytes& bytes) override {
    return Said("cuMemcpyHtoD", driver_.ToDevice(at_, bytes.data(), kBytes));
  }
  std::string Take(Bytes* bytes) override {
    constexpr int kCurrentContext = 0;
    constexpr int kToOwner = 100;
    if (driver_.Flush != nullptr) driver_.Flush(kCurrentContext, kToOwner);
    return Said("cuMemcpyDtoH", driver_.ToHost(bytes->data(), at_, kBytes));
  }

 private:
  // Whole pages of a GPU: no other memory shares them.
  static constexpr std::size_t kAllocated = 2 * 1024 * 1024;
  Driver driver_;
  cuda::Pointer at_ = 0;
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
