#ifndef RCSOCK_TESTS_GPU_GPU_H_
#define RCSOCK_TESTS_GPU_GPU_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/gpu/fake_cuda.h"

namespace gpu_test {

// A program's use of the driver: the real one with RCSOCK_TEST_GPU=N, else the
// one of this directory.
class Gpu {
 public:
  using Pointer = unsigned long long;

  static Gpu& Get() {
    static auto* gpu = new Gpu;
    return *gpu;
  }

  bool real() const { return real_; }
  // Ends the test program with a message if a call fails.
  char* Alloc(std::size_t bytes) {
    Pointer at = 0;
    Must("cuMemAlloc",
         Call<int(Pointer*, std::size_t)>("cuMemAlloc_v2")(&at, bytes));
    return reinterpret_cast<char*>(at);
  }
  char* AllocManaged(std::size_t bytes) {
    Pointer at = 0;
    Must("cuMemAllocManaged", Call<int(Pointer*, std::size_t, unsigned)>(
                                  "cuMemAllocManaged")(&at, bytes, 1));
    return reinterpret_cast<char*>(at);
  }
  // Memory that the program maps itself. It may be exported as a descriptor if
  // `shared`. The length is rounded up to kGranularity.
  static constexpr std::size_t kGranularity = 2 * 1024 * 1024;
  char* AllocMapped(std::size_t bytes, bool shared) {
    const std::size_t size = Whole(bytes);
    // CUmemAllocationProp: pinned memory of that device.
    struct {
      int type, handles, location, device;
      void* none;
      char flags[8];
    } const properties{1, shared ? 1 : 0, 1, device_, nullptr, {}};
    const int access[] = {1, device_, 3};
    unsigned long long handle = 0;
    Pointer at = 0;
    Must("cuMemCreate", Call<int(unsigned long long*, std::size_t, const void*,
                                 unsigned long long)>("cuMemCreate")(
                            &handle, size, &properties, 0));
    Must("cuMemAddressReserve", Call<int(Pointer*, std::size_t, std::size_t,
                                         Pointer, unsigned long long)>(
                                    "cuMemAddressReserve")(&at, size, 0, 0, 0));
    Must("cuMemMap",
         Call<int(Pointer, std::size_t, std::size_t, unsigned long long,
                  unsigned long long)>("cuMemMap")(at, size, 0, handle, 0));
    Must("cuMemRelease", Call<int(unsigned long long)>("cuMemRelease")(handle));
    Must("cuMemSetAccess",
         Call<int(Pointer, std::size_t, const void*, std::size_t)>(
             "cuMemSetAccess")(at, size, access, 1));
    return reinterpret_cast<char*>(at);
  }
  void FreeMapped(char* at, std::size_t bytes) {
    Must("cuMemUnmap",
         Call<int(Pointer, std::size_t)>("cuMemUnmap")(Of(at), Whole(bytes)));
    Must("cuMemAddressFree", Call<int(Pointer, std::size_t)>(
                                 "cuMemAddressFree")(Of(at), Whole(bytes)));
  }
  void Free(char* at) {
    Must("cuMemFree", Call<int(Pointer)>("cuMemFree_v2")(Of(at)));
  }
  void Put(char* to, const std::vector<char>& bytes) {
    Must("cuMemcpyHtoD",
         Call<int(Pointer, const void*, std::size_t)>("cuMemcpyHtoD_v2")(
             Of(to), bytes.data(), bytes.size()));
  }
  std::vector<char> Take(const char* from, std::size_t bytes) {
    std::vector<char> to(bytes);
    Must("cuMemcpyDtoH", Call<int(void*, Pointer, std::size_t)>(
                             "cuMemcpyDtoH_v2")(to.data(), Of(from), bytes));
    return to;
  }
  // A context beside the first, which is the thread's from then on.
  void* NewContext() {
    void* context = nullptr;
    Must("cuCtxCreate", Call<int(void**, unsigned, int)>("cuCtxCreate_v2")(
                            &context, 0, device_));
    return context;
  }
  void EndContext(void* context) {
    Must("cuCtxDestroy", Call<int(void*)>("cuCtxDestroy_v2")(context));
  }
  // For a thread that calls the driver.
  void Bind() {
    Must("cuCtxPushCurrent", Call<int(void*)>("cuCtxPushCurrent_v2")(primary_));
  }
  fake_cuda::Counts Counts() {
    fake_cuda::Counts counts{};
    Call<void(fake_cuda::Counts*)>("fake_cuda_counts")(&counts);
    return counts;
  }
  template <class F>
  F* Call(const char* name) {
    void* const found = ::dlsym(library_, name);
    if (found == nullptr) Must(name, -1);
    return reinterpret_cast<F*>(found);
  }

 private:
  Gpu() {
    const char* const ordinal = std::getenv("RCSOCK_TEST_GPU");
    real_ = ordinal != nullptr && *ordinal != '\0';
    const char* const fake = std::getenv("FAKE_CUDA");
    library_ = ::dlopen(real_ ? "libcuda.so.1" : fake, RTLD_NOW);
    if (library_ == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      std::exit(1);
    }
    Must("cuInit", Call<int(unsigned)>("cuInit")(0));
    Must("cuDeviceGet", Call<int(int*, int)>("cuDeviceGet")(
                            &device_, real_ ? std::atoi(ordinal) : 0));
    Must(
        "cuDevicePrimaryCtxRetain",
        Call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&primary_, device_));
    Bind();
  }
  static std::size_t Whole(std::size_t bytes) {
    return (bytes + kGranularity - 1) / kGranularity * kGranularity;
  }
  static Pointer Of(const char* at) { return reinterpret_cast<Pointer>(at); }
  static void Must(const char* call, int result) {
    if (result == 0) return;
    std::fprintf(stderr, "%s: %d\n", call, result);
    std::exit(1);
  }

  bool real_ = false;
  void* library_ = nullptr;
  int device_ = 0;
  void* primary_ = nullptr;
};

}  // namespace gpu_test

#endif  // RCSOCK_TESTS_GPU_GPU_H_
