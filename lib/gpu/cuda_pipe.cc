#include "lib/gpu/cuda_pipe.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <memory>
#include <new>

#include "lib/base/clock.h"

namespace rcsock::gpu::cuda {
namespace {

constexpr std::size_t kBytes = Pipe::kSlots * Pipe::kSlotBytes;
// A copy of a slot takes some 15 to 100 us.
constexpr std::uint64_t kSpinNs = 200'000;
constexpr long kNapNs = 50'000;

Pointer AsPointer(const void* at) {
  return static_cast<Pointer>(reinterpret_cast<std::uintptr_t>(at));
}

}  // namespace

CudaPipe* CudaPipe::Make(ContextPipes* of, int* error) {
  std::unique_ptr<CudaPipe> pipe(new (std::nothrow) CudaPipe(of));
  if (pipe == nullptr) {
    *error = ENOMEM;
    return nullptr;
  }
  *error = ToErrno(of->Note(pipe->MakeObjects()));
  return *error == 0 ? pipe.release() : nullptr;
}

Result CudaPipe::MakeObjects() {
  const Calls& calls = of_->calls();
  const Current current(of_);
  if (current.result() != kSuccess) return current.result();
  Result result = calls.StreamCreate(&stream_, kStreamNonBlocking);
  for (Event& event : events_) {
    if (result != kSuccess) return result;
    result = calls.EventCreate(&event, kEventDisableTiming);
  }
  return result;
}

int CudaPipe::NeedSlots() {
  if (base_ != nullptr) return 0;
  void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return ENOMEM;
  // A child of fork must not take over pages that a device writes to.
  ::madvise(at, kBytes, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(at);
  // Without pinned pages copies are slower, and right.
  if (!pin_.Take(kBytes)) return 0;
  const Current current(of_);
  pinned_ =
      current.result() == kSuccess &&
      of_->calls().HostRegister(base_, kBytes, kRegisterPortable) == kSuccess;
  if (!pinned_) pin_.reset();
  return 0;
}

CudaPipe::~CudaPipe() {
  const Calls& calls = of_->calls();
  {
    const Current current(of_);
    if (current.result() == kSuccess) {
      for (Event event : events_) {
        if (event != nullptr) calls.EventDestroy(event);
      }
      if (stream_ != nullptr) calls.StreamDestroy(stream_);
      if (pinned_) calls.HostUnregister(base_);
    }
  }
  if (base_ != nullptr) ::munmap(base_, kBytes);
}

template <class Copy>
int CudaPipe::Begin(int slot, Copy&& copy) {
  const Calls& calls = of_->calls();
  const auto at = static_cast<std::size_t>(slot);
  const Current current(of_);
  Result result = current.result();
  if (result == kSuccess) result = copy(calls);
  if (result != kSuccess) return ToErrno(of_->Note(result));
  // From here on the device may touch the slot, whatever the driver says now.
  busy_[at] = true;
  no_event_[at] =
      of_->Note(calls.EventRecord(events_[at], stream_)) != kSuccess;
  return 0;
}

int CudaPipe::FromDevice(int slot, const void* from, std::size_t bytes,
                         std::byte* host) {
  return Begin(slot, [&](const Calls& calls) {
    return calls.CopyToHost(host, AsPointer(from), bytes, stream_);
  });
}

int CudaPipe::ToDevice(int slot, void* to, std::size_t bytes,
                       const std::byte* host) {
  return Begin(slot, [&](const Calls& calls) {
    return calls.CopyToDevice(AsPointer(to), host, bytes, stream_);
  });
}

int CudaPipe::OnDevices(int slot, void* to, const void* from,
                        std::size_t bytes) {
  if (of_->calls().CopyOnDevices == nullptr) return EOPNOTSUPP;
  return Begin(slot, [&](const Calls& calls) {
    return calls.CopyOnDevices(AsPointer(to), AsPointer(from), bytes, stream_);
  });
}

bool CudaPipe::Look(int slot, int* error) {
  const auto at = static_cast<std::size_t>(slot);
  *error = 0;
  if (!busy_[at]) return true;
  Result result;
  {
    const Current current(of_);
    result = current.result();
    if (result == kSuccess) {
      result = no_event_[at] ? of_->calls().StreamQuery(stream_)
                             : of_->calls().EventQuery(events_[at]);
    }
  }
  if (result == kNotReady) return false;
  // An error ends the copy.  If the context is gone, its copy has ended, too.
  busy_[at] = false;
  *error = ToErrno(of_->Note(result));
  return true;
}

int CudaPipe::Wait(int slot) {
  const std::uint64_t began = base::NowNs();
  int error = 0;
  while (!Look(slot, &error)) {
    const std::uint64_t waited = base::NowNs() - began;
    if (waited > kMostWaitNs) return ETIMEDOUT;
    if (waited > kSpinNs) {
      const timespec nap{0, kNapNs};
      ::syscall(SYS_nanosleep, &nap, nullptr);
    }
  }
  return error;
}

bool CudaPipe::Settle() {
  for (int slot = 0; slot < kSlots; ++slot) {
    if (Wait(slot) == ETIMEDOUT) return false;
  }
  return true;
}

}  // namespace rcsock::gpu::cuda
