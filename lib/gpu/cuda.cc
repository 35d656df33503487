#include "lib/gpu/cuda.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>

#include "lib/base/critical.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"

namespace rcsock::gpu::cuda {
namespace {

constinit base::Latch g_latch;
constinit Calls g_calls;
constinit std::atomic<bool> g_loaded{false};

template <class F>
bool Find(void* library, const char* name, F** slot) {
  void* const found = ::dlsym(library, name);
  *slot = reinterpret_cast<F*>(found);
  return found != nullptr;
}

// Returns true if the driver has all that is needed.
bool FindAll(void* library) {
  Calls calls;
#define X(field, name, parameters)                    \
  if (!Find(library, name, &calls.field)) {           \
    RCSOCK_LOG(1, "gpu: the driver has no %s", name); \
    return false;                                     \
  }
  RCSOCK_CUDA_CALLS(X)
#undef X
#define X(field, name, parameters) Find(library, name, &calls.field);
  RCSOCK_CUDA_LATE_CALLS(X)
#undef X
  g_calls = calls;
  return true;
}

}  // namespace

const Calls* Loaded() {
  if (g_loaded.load(std::memory_order_acquire)) return &g_calls;
  const base::Critical critical;
  const base::LatchGuard hold(g_latch);
  if (g_loaded.load(std::memory_order_acquire)) return &g_calls;
  const base::InternalScope internal;
  void* const library =
      ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  // The reference to the library is kept: the program may close its own.
  if (!FindAll(library)) {
    ::dlclose(library);
    return nullptr;
  }
  g_loaded.store(true, std::memory_order_release);
  return &g_calls;
}

void ForkPrepare() { g_latch.LockForFork(); }

void ForkParent() { g_latch.UnlockAfterFork(false); }

void ForkChild() {
  forks.fetch_add(1, std::memory_order_relaxed);
  g_latch.Reset();
}

int ToErrno(Result result) {
  switch (result) {
    case kSuccess:
      return 0;
    // With a context its memory goes, and its streams and events.
    case kInvalidValue:
    case kInvalidContext:
    case kInvalidHandle:
    case kContextIsDestroyed:
      return EFAULT;
    case kOutOfMemory:
      return ENOMEM;
    case kNotSupported:
      return EOPNOTSUPP;
    case kNotInitialized:
    case kDeinitialized:
    case kDeviceUnavailable:
    case kNoDevice:
    case kInvalidDevice:
      return ENODEV;
    default:
      return EIO;
  }
}

}  // namespace rcsock::gpu::cuda
