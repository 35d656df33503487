// Memory of NVIDIA's GPUs.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/critical.h"
#include "lib/base/foreign_fd.h"
#include "lib/base/internal.h"
#include "lib/base/no_cancel.h"
#include "lib/gpu/cuda_context.h"
#include "lib/gpu/cuda_import.h"
#include "lib/gpu/memory.h"

namespace rcsock::gpu::cuda {
namespace {

Pointer AsPointer(const void* at) {
  return static_cast<Pointer>(reinterpret_cast<std::uintptr_t>(at));
}

// One allocation, or the part of an allocation that the caller asked for.
struct Range {
  Pointer begin;
  Pointer end;
  // The driver gives no number twice. So the number shows that memory was
  // freed, and allocated again at this address.
  unsigned long long id;
};

// Returns kSuccess if a device has the byte, kInvalidValue if none has, or why
// the driver cannot say. Managed memory is the host's, too: each side finds its
// pages when it touches them.
Result AskDevice(const Calls& calls, Pointer at) {
  unsigned type = 0;
  const Result result =
      calls.PointerGetAttribute(&type, kPointerMemoryType, at);
  if (result != kSuccess) return result;
  if (type != kMemoryOfDevice) return kInvalidValue;
  // The driver may write one byte, or four.
  int managed = 0;
  return calls.PointerGetAttribute(&managed, kPointerIsManaged, at) ==
                     kSuccess &&
                 managed != 0
             ? kInvalidValue
             : kSuccess;
}

bool OfDevice(const Calls& calls, Pointer at) {
  return AskDevice(calls, at) == kSuccess;
}

unsigned long long IdOf(const Calls& calls, Pointer at) {
  unsigned long long id = 0;
  return calls.PointerGetAttribute(&id, kPointerBufferId, at) == kSuccess ? id
                                                                          : 0;
}

int DeviceOf(const Calls& calls, Pointer at) {
  int ordinal = -1;
  return calls.PointerGetAttribute(&ordinal, kPointerDeviceOrdinal, at) ==
                 kSuccess
             ? ordinal
             : -1;
}

// Where the allocation around `at` ends; `end` if the driver does not say.
Pointer EndOf(const Calls& calls, Pointer at, Pointer end) {
  Pointer start = 0;
  std::size_t size = 0;
  if (calls.PointerGetAttribute(&start, kPointerRangeStart, at) != kSuccess ||
      calls.PointerGetAttribute(&size, kPointerRangeSize, at) != kSuccess ||
      start > at || start + size <= at) {
    return end;
  }
  return std::min<Pointer>(end, start + size);
}

class CudaMemory final : public Memory {
 public:
  CudaMemory(std::shared_ptr<ContextPipes> of, std::vector<Range> ranges)
      : of_(std::move(of)), ranges_(std::move(ranges)) {}

  int Check(const void* at, std::size_t length) const override {
    const Pointer begin = AsPointer(at);
    const base::Critical critical;
    const base::NoCancel no_cancel;
    for (const Range& range : ranges_) {
      if (range.end <= begin || range.begin >= begin + length) continue;
      const Pointer first = std::max(begin, range.begin);
      const Calls& calls = of_->calls();
      const Result result = AskDevice(calls, first);
      if (result != kSuccess) return ToErrno(of_->Note(result));
      if (IdOf(calls, first) != range.id) return EFAULT;
    }
    return 0;
  }

  void BeforeSharing(const void* at) const override {
    int on = 1;
    const base::Critical critical;
    const base::NoCancel no_cancel;
    of_->calls().PointerSetAttribute(&on, kPointerSyncMemops, AsPointer(at));
  }

  int Export(const void* at, std::size_t length, base::UniqueFd* fd,
             std::uint64_t* offset) const override {
    const Calls& calls = of_->calls();
    if (calls.HandleForRange == nullptr) return EOPNOTSUPP;
    const auto page = static_cast<Pointer>(::sysconf(_SC_PAGESIZE));
    const Pointer first = AsPointer(at) / page * page;
    const Pointer end = (AsPointer(at) + length + page - 1) / page * page;
    int number = -1;
    const Current current(of_.get());
    Result result = current.result();
    if (result == kSuccess) {
      const base::InternalScope internal;
      result = calls.HandleForRange(&number, first, end - first, kDmaBufFd, 0);
    }
    if (result != kSuccess) return ToErrno(of_->Note(result));
    *fd = base::UniqueFd(base::RelocateHigh(number));
    *offset = AsPointer(at) - first;
    return 0;
  }

  std::shared_ptr<HostPages> Pin(std::byte* at, std::size_t bytes) override {
    return of_->Pin(at, bytes);
  }

  const void* context() const override { return of_.get(); }

  int Pass(const void* at, std::size_t length, Passed* passed) override {
    return PassMemory(of_.get(), AsPointer(at), length, passed);
  }
  int Descriptor(const void* at, base::UniqueFd* fd) override {
    return MakeDescriptor(of_.get(), AsPointer(at), fd);
  }
  bool IsOpen(const Passed& passed) const override {
    return of_->IsOpen(passed);
  }
  std::shared_ptr<Import> Open(const Passed& passed, int fd) override {
    return of_->Open(passed, fd);
  }

  bool OrdersWrites() const override {
    int ordering = 0;
    return of_->calls().DeviceGetAttribute(&ordering, kWritesOrdering,
                                           of_->device()) == kSuccess &&
           ordering > 0;
  }

 protected:
  Pipe* Take(int* error) override { return of_->Take(error); }
  void Return(Pipe* pipe) override { of_->Return(pipe); }

 private:
  const std::shared_ptr<ContextPipes> of_;
  const std::vector<Range> ranges_;
};

// An allocator may map many small pieces in a row.
constexpr std::size_t kMostRanges = 65536;

}  // namespace

int FindMemory(const void* at, std::size_t length,
               std::shared_ptr<Memory>* found) {
  const Calls* const calls = Loaded();
  const Pointer begin = AsPointer(at);
  const Pointer end = begin + length;
  if (calls == nullptr || length == 0 || end < begin) return 0;
  const base::Critical critical;
  const base::NoCancel no_cancel;
  if (!OfDevice(*calls, begin)) return 0;
  const int ordinal = DeviceOf(*calls, begin);
  try {
    std::vector<Range> ranges;
    for (Pointer next = begin; next < end;) {
      if (!OfDevice(*calls, next) || DeviceOf(*calls, next) != ordinal ||
          ranges.size() >= kMostRanges) {
        return EINVAL;
      }
      const Pointer last = EndOf(*calls, next, end);
      ranges.push_back({next, last, IdOf(*calls, next)});
      next = last;
    }
    Device device = 0;
    Result result = calls->DeviceGet(&device, ordinal);
    if (result != kSuccess) return ToErrno(result);
    auto of = ContextPipes::Of(*calls, begin, device, &result);
    if (of == nullptr) return ToErrno(result);
    *found = std::make_shared<CudaMemory>(std::move(of), std::move(ranges));
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

}  // namespace rcsock::gpu::cuda
