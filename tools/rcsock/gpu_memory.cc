#include "tools/rcsock/gpu_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace rcsock::tools {
namespace {

std::string Said(const char* call, int result) {
  return result == 0 ? "" : fmt::format("{}: CUDA error {}", call, result);
}

}  // namespace

std::string GpuMemory::Make(int ordinal, std::size_t bytes) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return "there is no libcuda.so.1: no GPU's driver";
  std::string bad;
  const auto find = [&](const char* name, auto* slot) {
    *slot = reinterpret_cast<std::remove_pointer_t<decltype(slot)>>(
        ::dlsym(driver, name));
    if (*slot == nullptr && bad.empty()) {
      bad = fmt::format("libcuda.so.1 has no {}", name);
    }
  };
  int (*init)(unsigned) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*allocate)(Pointer*, std::size_t) = nullptr;
  find("cuInit", &init);
  find("cuDeviceGet", &device_get);
  find("cuDevicePrimaryCtxRetain", &retain);
  find("cuCtxPushCurrent_v2", &push);
  find("cuMemAlloc_v2", &allocate);
  find("cuMemFree_v2", &free_);
  find("cuMemcpyHtoD_v2", &to_device_);
  find("cuMemcpyDtoH_v2", &to_host_);
  if (!bad.empty()) return bad;
  flush_ = reinterpret_cast<decltype(flush_)>(
      ::dlsym(driver, "cuFlushGPUDirectRDMAWrites"));
  int device = 0;
  void* context = nullptr;
  bad = Said("cuInit", init(0));
  if (bad.empty()) bad = Said("cuDeviceGet", device_get(&device, ordinal));
  if (bad.empty()) {
    bad = Said("cuDevicePrimaryCtxRetain", retain(&context, device));
  }
  if (bad.empty()) bad = Said("cuCtxPushCurrent", push(context));
  if (bad.empty()) bad = Said("cuMemAlloc", allocate(&memory_, bytes));
  return bad;
}

std::string GpuMemory::Put(const void* from, std::size_t bytes) {
  return Said("cuMemcpyHtoD", to_device_(memory_, from, bytes));
}

std::string GpuMemory::Take(void* to, std::size_t bytes) {
  return Said("cuMemcpyDtoH", to_host_(to, memory_, bytes));
}

void GpuMemory::Flush() {
  constexpr int kCurrentContext = 0;
  constexpr int kToOwner = 100;
  if (flush_ != nullptr) flush_(kCurrentContext, kToOwner);
}

}  // namespace rcsock::tools
