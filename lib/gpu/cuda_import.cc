#include "lib/gpu/cuda_import.h"

#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "lib/base/critical.h"
#include "lib/base/foreign_fd.h"
#include "lib/base/internal.h"
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

// What stands for the handle of memory that goes by descriptor: it names this
// process. Returns false if the kernel has no random bytes yet.
bool OwnName(IpcHandle* name) {
  static constinit base::Latch latch;
  static constinit IpcHandle own_name{};
  static constinit bool made = false;
  const base::Critical critical;
  const base::LatchGuard hold(latch);
  if (!made) {
    made = ::syscall(SYS_getrandom, &own_name, sizeof own_name,
                     GRND_NONBLOCK) == sizeof own_name;
  }
  *name = own_name;
  return made;
}

// The largest allocation that a peer may name: more than any device has.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

// Maps a peer's allocation. The driver checks that the descriptor is one of its
// own, and that the allocation has so many bytes.
Result MapDescriptor(ContextPipes* of, int fd, std::uint64_t size,
                     Pointer* at) {
  const Calls& calls = of->calls();
  if (fd < 0 || size == 0 || size > kMostBytes) return kInvalidValue;
  Handle handle = 0;
  Result result = calls.ImportHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
      kFileDescriptor);
  if (result != kSuccess) return result;
  result = calls.ReserveRange(at, size, 0, 0, 0);
  if (result == kSuccess) {
    result = calls.MapHandle(*at, size, 0, handle, 0);
    if (result == kSuccess) {
      const Access access{kLocationOfDevice, of->device(), kReadAndWrite};
      result = calls.SetAccess(*at, size, &access, 1);
      if (result != kSuccess) calls.UnmapRange(*at, size);
    }
    if (result != kSuccess) calls.FreeRange(*at, size);
  }
  // The mapping keeps the allocation.
  calls.ReleaseHandle(handle);
  return result;
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
  *passed = {};
  IpcHandle handle{};
  // Its error is about this memory. The context has just been made current.
  Result result = calls.IpcGet(&handle, start);
  if (result != kSuccess) {
    // What cuMemMap has mapped has no such handle, nor have most pools.
    Handle mapped = 0;
    // The number alone tells such allocations apart.
    if (!HasDescriptors(calls) || id == 0 || !OwnName(&handle) ||
        calls.RetainHandle(&mapped, reinterpret_cast<void*>(
                                        static_cast<std::uintptr_t>(start))) !=
            kSuccess) {
      return ToErrno(result);
    }
    calls.ReleaseHandle(mapped);
    passed->way = Passed::kByDescriptor;
    passed->size = size;
  }
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

int MakeDescriptor(ContextPipes* of, Pointer at, base::UniqueFd* fd) {
  const Calls& calls = of->calls();
  if (!HasDescriptors(calls)) return EOPNOTSUPP;
  const Current current(of);
  Result result = current.result();
  Handle handle = 0;
  if (result == kSuccess) {
    result = calls.RetainHandle(
        &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)));
  }
  if (result != kSuccess) return ToErrno(result);
  int number = -1;
  {
    const base::InternalScope internal;
    result = calls.ExportHandle(&number, handle, kFileDescriptor, 0);
  }
  calls.ReleaseHandle(handle);
  if (result != kSuccess) return ToErrno(result);
  *fd = base::UniqueFd(base::RelocateHigh(number));
  return 0;
}

std::shared_ptr<CudaImport> CudaImport::Make(ContextPipes* of,
                                             const Passed& passed, int fd) {
  static_assert(sizeof passed.handle == sizeof(IpcHandle));
  const Calls& calls = of->calls();
  const bool by_descriptor = passed.way == Passed::kByDescriptor;
  if (calls.CopyOnDevices == nullptr ||
      (by_descriptor
           ? !HasDescriptors(calls)
           : passed.way != Passed::kByHandle || calls.IpcOpen == nullptr ||
                 calls.IpcClose == nullptr)) {
    return nullptr;
  }
  IpcHandle handle;
  std::memcpy(&handle, passed.handle, sizeof handle);
  const Current current(of);
  if (current.result() != kSuccess) return nullptr;
  Pointer at = FindOwn(handle, passed.id);
  How how = How::kOwn;
  if (at == 0) {
    how = by_descriptor ? How::kMapped : How::kOpened;
    // "Invalid handle" and "invalid context" are about the peer's handle here.
    const Result result = by_descriptor
                              ? MapDescriptor(of, fd, passed.size, &at)
                              : calls.IpcOpen(&at, handle, kIpcLazyPeerAccess);
    if (result != kSuccess) {
      RCSOCK_LOG(1, "gpu: the driver does not open a peer's memory: %d",
                 result);
      return nullptr;
    }
  }
  auto* const made = new (std::nothrow) CudaImport(of, passed, at, how);
  if (made != nullptr) {
    try {
      std::shared_ptr<CudaImport> import(made);  // deletes on failure
      if (made->Measure(calls)) return import;
    } catch (const std::bad_alloc&) {
    }
  }
  LetGo(calls, at, passed.size, how);
  return nullptr;
}

bool CudaImport::Measure(const Calls& calls) {
  Pointer start = 0;
  std::size_t size = 0;
  if (!RangeOf(calls, at_, &start, &size)) return false;
  left_ = size - (at_ - start);
  if (how_ == How::kMapped) left_ = std::min(left_, passed_.size);
  return true;
}

void CudaImport::LetGo(const Calls& calls, Pointer at, std::uint64_t size,
                       How how) {
  if (how == How::kOpened) calls.IpcClose(at);
  if (how != How::kMapped) return;
  calls.UnmapRange(at, size);
  calls.FreeRange(at, size);
}

void CudaImport::CloseLatched() {
  state_.store(State::kCloses, std::memory_order_release);
  const Current current(of_);
  // What is mapped is the process's, and outlives the context.
  if (current.result() == kSuccess || how_ == How::kMapped) {
    LetGo(of_->calls(), at_, passed_.size, how_);
  }
  state_.store(State::kClosed, std::memory_order_release);
  of_ = nullptr;
}

void CudaImport::Close() {
  if (OfParent()) return;
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  if (of_ != nullptr) CloseLatched();
}

void CudaImport::End() {
  if (OfParent()) return;
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  if (of_ != nullptr && --users_ == 0) CloseLatched();
}

bool CudaImport::Use() {
  if (OfParent()) return false;
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  if (of_ == nullptr) return false;
  ++users_;
  return true;
}

bool CudaImport::Is(const Passed& passed) const {
  return !OfParent() &&
         state_.load(std::memory_order_acquire) == State::kOpen &&
         passed_.way == passed.way && passed_.id == passed.id &&
         passed_.size == passed.size &&
         std::memcmp(passed_.handle, passed.handle, sizeof passed.handle) == 0;
}

bool CudaImport::HasHandle(const Passed& passed) const {
  return !OfParent() && how_ == How::kOpened &&
         state_.load(std::memory_order_acquire) != State::kClosed &&
         passed.way == Passed::kByHandle && passed_.id != passed.id &&
         std::memcmp(passed_.handle, passed.handle, sizeof passed.handle) == 0;
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
  if (how_ == How::kOwn && (of_->calls().PointerGetAttribute(
                                &id, kPointerBufferId, at_) != kSuccess ||
                            id != passed_.id)) {
    return nullptr;
  }
  return reinterpret_cast<const void*>(
      static_cast<std::uintptr_t>(at_ + offset));
}

}  // namespace rcsock::gpu::cuda
