#include "tools/rcsock/perf/gpu_buffer.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "lib/include/rcsock/rcsock.h"
#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/net.h"

namespace rcsock::perf {

// The functions of the driver that a program uses, and those of rcsock if it
// runs under rcsock.
struct GpuBuffer::Driver {
  using Pointer = unsigned long long;

  static const Driver* Get() {
    static const Driver driver;
    return &driver;
  }
  Driver() : library(::dlopen("libcuda.so.1", RTLD_NOW)) {
    if (library == nullptr) Fail("no libcuda.so.1 here: no GPU's driver");
    Find(library, "cuInit", &Init);
    Find(library, "cuDeviceGet", &DeviceGet);
    Find(library, "cuDevicePrimaryCtxRetain", &Retain);
    Find(library, "cuCtxPushCurrent_v2", &Push);
    Find(library, "cuMemAlloc_v2", &Alloc);
    Find(library, "cuMemFree_v2", &Free);
    Find(library, "cuMemcpyDtoH_v2", &ToHost);
    Find(library, "cuMemcpyHtoD_v2", &ToDevice);
    // The functions are the preload's.
    Look(RTLD_DEFAULT, "rcs_register_buffer", &Register);
    Look(RTLD_DEFAULT, "rcs_unregister_buffer", &Unregister);
    Look(RTLD_DEFAULT, "rcs_send_registered", &Send);
    Look(RTLD_DEFAULT, "rcs_sent_done", &Done);
    Look(RTLD_DEFAULT, "rcs_recv_registered", &Receive);
    Must("cuInit", Init(0));
  }
  static void Must(const char* call, int result) {
    if (result != 0) perf::Fail("{}: CUDA error {}", call, result);
  }
  bool under_rcsock() const { return Register != nullptr; }

  void* library;
  int (*Init)(unsigned) = nullptr;
  int (*DeviceGet)(int*, int) = nullptr;
  int (*Retain)(void**, int) = nullptr;
  int (*Push)(void*) = nullptr;
  int (*Alloc)(Pointer*, std::size_t) = nullptr;
  int (*Free)(Pointer) = nullptr;
  int (*ToHost)(void*, Pointer, std::size_t) = nullptr;
  int (*ToDevice)(Pointer, const void*, std::size_t) = nullptr;
  decltype(&rcs_register_buffer) Register = nullptr;
  decltype(&rcs_unregister_buffer) Unregister = nullptr;
  decltype(&rcs_send_registered) Send = nullptr;
  decltype(&rcs_sent_done) Done = nullptr;
  decltype(&rcs_recv_registered) Receive = nullptr;

 private:
  template <class F>
  static void Look(void* where, const char* name, F* slot) {
    *slot = reinterpret_cast<F>(::dlsym(where, name));
  }
  template <class F>
  static void Find(void* where, const char* name, F* slot) {
    Look(where, name, slot);
    if (*slot == nullptr) perf::Fail("libcuda.so.1 has no {}", name);
  }
};

GpuBuffer::GpuBuffer(int ordinal, std::size_t size)
    : driver_(Driver::Get()), size_(size) {
  int device = 0;
  Driver::Must("cuDeviceGet", driver_->DeviceGet(&device, ordinal));
  Driver::Must("cuDevicePrimaryCtxRetain", driver_->Retain(&context_, device));
  Driver::Must("cuCtxPushCurrent", driver_->Push(context_));
  Driver::Must("cuMemAlloc", driver_->Alloc(&memory_, size));
  if (!driver_->under_rcsock()) {
    host_.resize(size);
  } else if (driver_->Register(reinterpret_cast<void*>(memory_), size) != 0) {
    FailErrno("register the GPU's memory");
  }
}

GpuBuffer::~GpuBuffer() {
  // A lane may need the memory for longer; then it goes with the process.
  if (driver_->under_rcsock() &&
      driver_->Unregister(reinterpret_cast<void*>(memory_), size_) != 0) {
    return;
  }
  driver_->Free(memory_);
}

void GpuBuffer::Send(int fd, std::size_t size) {
  if (!driver_->under_rcsock()) {
    Driver::Must("cuMemcpyDtoH", driver_->ToHost(host_.data(), memory_, size));
    SendAll(fd, host_.data(), size);
    return;
  }
  const char* at = reinterpret_cast<const char*>(memory_);
  rcs_sent sent{};
  while (size > 0) {
    const ssize_t n = driver_->Send(fd, at, size, MSG_NOSIGNAL, &sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("send from the GPU");
    at += n;
    size -= static_cast<std::size_t>(n);
    while (driver_->Done(fd, &sent, 1) == 0) {
    }
  }
}

std::size_t GpuBuffer::Receive(int fd) {
  for (;;) {
    const ssize_t n =
        driver_->under_rcsock()
            ? driver_->Receive(fd, reinterpret_cast<void*>(memory_), size_,
                               MSG_WAITALL)
            : ::recv(fd, host_.data(), size_, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("receive");
    const auto got = static_cast<std::size_t>(n);
    if (got != 0 && !driver_->under_rcsock()) {
      Driver::Must("cuMemcpyHtoD",
                   driver_->ToDevice(memory_, host_.data(), got));
    }
    return got;
  }
}

}  // namespace rcsock::perf
