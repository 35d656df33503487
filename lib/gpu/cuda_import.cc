#include "lib/gpu/cuda_import.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "lib/base/critical.h"
#include "lib/base/log.h"

namespace rcsock::gpu::cuda {
namespace {

// What this process has passed of late, for a peer that is this process.
struct Own {
  IpcHandle handle;
  unsigned long long id;
  Pointer at;
  std::uint64_t used;
};
constexpr std::size_t kOwn = 64;
constinit base::Latch own_latch;
constinit std::array<Own, kOwn> own RC_GUARDED_BY(own_latch){};
constinit std::uint64_t own_uses RC_GUARDED_BY(own_latch) = 0;

bool Same(const Own& one, const IpcHandle& handle, unsigned long long id) {
  return one.at != 0 && one.id == id &&
         std::memcmp(&one.handle, &handle, sizeof handle) == 0;
}

void NoteOwn(const IpcHandle& handle, unsigned long long id, Pointer at) {
  const base::Critical critical;
  const base::LatchGuard hold(own_latch);
  // In the place of what was passed the longest ago: a peer may be about to
  // look for the others.
  Own* place = own.data();
  for (Own& one : own) {
    if (Same(one, handle, id)) {
      one.used = ++own_uses;
      return;
    }
    if (one.used < place->used) place = &one;
  }
  *place = {handle, id, at, ++own_uses};
}

// Returns the address of such memory, or 0.
Pointer FindOwn(const IpcHandle& handle, unsigned long long id) {
  const base::Critical critical;
  const base::LatchGuard hold(own_latch);
  for (const Own& one : own) {
    if (Same(one, handle, id)) return one.at;
  }
  return 0;
}

// The driver's words for the allocation around `at`.
bool RangeOf(const Calls& calls, Pointer at, Pointer* start,
             std::size_t* size) {
  return calls.PointerGetAttribute(start, kPointerRangeStart, at) == kSuccess &&
         calls.PointerGetAttribute(size, kPointerRangeSize, at) == kSuccess &&
         *start <= at && at - *start < *size;
}

}  // namespace

int PassMemory(ContextPipes* of, Pointer at, std::size_t length,
               Passed* passed) {
  const Calls& calls = of->calls();
  if (calls.IpcGet == nullptr || calls.CopyOnDevices == nullptr) {
    return EOPNOTSUPP;
  }
  const Current current(of);
  if (current.result() != kSuccess) return ToErrno(current.result());
  Pointer start = 0;
  std::size_t size = 0;
  unsigned long long id = 0;
  if (!RangeOf(calls, at, &start, &size) ||
      calls.PointerGetAttribute(&id, kPointerBufferId, start) != kSuccess) {
    return EFAULT;
  }
  // What cuMemMap has mapped, and most pools, have no such handle.
  IpcHandle handle{};
  // Its error is about this memory. The context has just been made current.
  const Result result = calls.IpcGet(&handle, start);
  if (result != kSuccess) return ToErrno(result);
  // The program's copies into the memory end before the peer's begin.
  int on = 1;
  calls.PointerSetAttribute(&on, kPointerSyncMemops, start);
  NoteOwn(handle, id, start);
  std::memcpy(passed->handle, &handle, sizeof handle);
  passed->id = id;
  passed->offset = at - start;
  passed->length = std::min<std::uint64_t>(length, size - passed->offset);
  return 0;
}

std::shared_ptr<CudaImport> CudaImport::Make(ContextPipes* of,
                                             const Passed& passed) {
  static_assert(sizeof passed.handle == sizeof(IpcHandle));
  const Calls& calls = of->calls();
  if (calls.IpcOpen == nullptr || calls.IpcClose == nullptr ||
      calls.CopyOnDevices == nullptr) {
    return nullptr;
  }
  IpcHandle handle;
  std::memcpy(&handle, passed.handle, sizeof handle);
  const Current current(of);
  if (current.result() != kSuccess) return nullptr;
  Pointer at = FindOwn(handle, passed.id);
  const bool opened = at == 0;
  if (opened) {
    // "Invalid handle" and "invalid context" are about the peer's handle here.
    const Result result = calls.IpcOpen(&at, handle, kIpcLazyPeerAccess);
    if (result != kSuccess) {
      RCSOCK_LOG(1, "gpu: the driver does not open a peer's memory: %d",
                 result);
      return nullptr;
    }
  }
  auto* const made = new (std::nothrow) CudaImport(of, at, opened, passed.id);
  if (made != nullptr) {
    try {
      std::shared_ptr<CudaImport> import(made);  // deletes on failure
      if (made->Measure(calls)) return import;
    } catch (const std::bad_alloc&) {
    }
  }
  if (opened) calls.IpcClose(at);
  return nullptr;
}

bool CudaImport::Measure(const Calls& calls) {
  Pointer start = 0;
  std::size_t size = 0;
  if (!RangeOf(calls, at_, &start, &size)) return false;
  left_ = size - (at_ - start);
  return true;
}

void CudaImport::End() {
  if (OfParent()) return;
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  if (of_ == nullptr) return;
  if (opened_) {
    const Current current(of_);
    if (current.result() == kSuccess) of_->calls().IpcClose(at_);
  }
  of_ = nullptr;
}

bool CudaImport::IsOther(const CudaImport& made) const {
  if (OfParent() || !opened_ || !made.opened_ || at_ != made.at_ ||
      id_ == made.id_) {
    return false;
  }
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  return of_ != nullptr;
}

const void* CudaImport::At(std::uint64_t offset, std::uint64_t length) const {
  if (OfParent() || offset > left_ || length > left_ - offset) return nullptr;
  const base::Critical critical;
  const base::NoCancel no_cancel;
  const base::LatchGuard hold(latch_);
  if (of_ == nullptr) return nullptr;
  // The program may have freed memory of its own, and have other memory there,
  // which it has passed to nobody.
  unsigned long long id = 0;
  if (!opened_ && (of_->calls().PointerGetAttribute(&id, kPointerBufferId,
                                                    at_) != kSuccess ||
                   id != id_)) {
    return nullptr;
  }
  return reinterpret_cast<const void*>(
      static_cast<std::uintptr_t>(at_ + offset));
}

}  // namespace rcsock::gpu::cuda
