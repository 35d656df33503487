#include "lib/gpu/cuda_context.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/gpu/cuda_import.h"
#include "lib/gpu/cuda_pages.h"
#include "lib/gpu/cuda_pipe.h"

namespace rcsock::gpu::cuda {
namespace {

// Leaked: a thread may still send when the process ends.
struct All {
  base::Latch latch;
  std::vector<std::weak_ptr<ContextPipes>> list RC_GUARDED_BY(latch);
};
constinit std::atomic<All*> registry{nullptr};

// Throws std::bad_alloc.
All& Registry() {
  All* all = registry.load(std::memory_order_acquire);
  if (all != nullptr) return *all;
  auto made = std::make_unique<All>();
  if (registry.compare_exchange_strong(all, made.get())) all = made.release();
  return *all;
}

}  // namespace

std::shared_ptr<ContextPipes> ContextPipes::Of(const Calls& calls, Pointer at,
                                               Device device, Result* result) {
  // Memory of a pool, or mapped by the program, belongs to no context.
  Context context = nullptr;
  bool primary = false;
  if (calls.PointerGetAttribute(&context, kPointerContext, at) != kSuccess) {
    context = nullptr;
  }
  if (context == nullptr) {
    *result = calls.PrimaryRetain(&context, device);
    if (*result != kSuccess) return nullptr;
    primary = true;
  }
  const auto release = [&] {
    if (primary) calls.PrimaryRelease(device);
  };
  try {
    All& all = Registry();
    const base::LatchGuard hold(all.latch);
    std::erase_if(all.list, [](const auto& one) { return one.expired(); });
    for (const auto& weak : all.list) {
      auto one = weak.lock();
      if (one == nullptr || one->gone() || one->context_ != context ||
          one->primary_ != primary) {
        continue;
      }
      release();
      return one;
    }
    std::shared_ptr<ContextPipes> made(
        new ContextPipes(calls, context, device, primary));
    all.list.push_back(made);
    return made;
  } catch (const std::bad_alloc&) {
    release();
    *result = kOutOfMemory;
    return nullptr;
  }
}

ContextPipes::~ContextPipes() {
  for (const auto& weak : pages_) {
    if (const auto pages = weak.lock()) pages->End();
  }
  for (const auto& weak : imports_) {
    if (const auto import = weak.lock()) import->Close();
  }
  for (CudaPipe* pipe : free_) delete pipe;
  const base::NoCancel no_cancel;
  if (primary_) calls_.PrimaryRelease(device_);
}

Result ContextPipes::Note(Result result) {
  if (result == kInvalidContext || result == kContextIsDestroyed ||
      result == kDeinitialized || result == kInvalidHandle) {
    gone_.store(true, std::memory_order_relaxed);
  }
  return result;
}

Pipe* ContextPipes::Take(int* error) {
  {
    const base::Critical critical;
    const base::LatchGuard hold(latch_);
    for (CudaPipe*& one : free_) {
      if (one != nullptr) return std::exchange(one, nullptr);
    }
  }
  return CudaPipe::Make(this, error);
}

void ContextPipes::Return(Pipe* returned) {
  auto* const pipe = static_cast<CudaPipe*>(returned);
  // A handler of the program's may have forked meanwhile.
  if (pipe->OfParent()) return;
  if (!pipe->Settle()) {
    // The device may still write to the pipe's memory. Nothing of the pipe can
    // ever be used again.
    RCSOCK_LOG(1, "gpu: a copy did not end in time");
    return;
  }
  if (!gone()) {
    const base::Critical critical;
    const base::LatchGuard hold(latch_);
    for (CudaPipe*& one : free_) {
      if (one != nullptr) continue;
      one = pipe;
      return;
    }
  }
  delete pipe;
}

namespace {

// Has the end of the context end `made`. Returns that, or null: it has ended,
// for want of memory.
template <class T>
std::shared_ptr<T> Kept(std::vector<std::weak_ptr<T>>* list,
                        std::shared_ptr<T> made) {
  std::erase_if(*list, [](const auto& one) { return one.expired(); });
  try {
    list->push_back(made);
  } catch (const std::bad_alloc&) {
    made->End();
    return nullptr;
  }
  return made;
}

}  // namespace

std::shared_ptr<HostPages> ContextPipes::Pin(std::byte* at, std::size_t bytes) {
  auto pages = CudaPages::Make(this, at, bytes);
  if (pages == nullptr) return nullptr;
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  return Kept(&pages_, std::move(pages));
}

// The driver is not asked with the latch held: it may wait for the GPU, and all
// copies of the context take this latch.
std::shared_ptr<CudaImport> ContextPipes::FindOpen(const Passed& passed) {
  for (const auto& weak : imports_) {
    auto one = weak.lock();
    if (one != nullptr && one->Is(passed)) return one;
  }
  return nullptr;
}

bool ContextPipes::HasHandle(const Passed& passed) {
  for (const auto& weak : imports_) {
    const auto one = weak.lock();
    if (one != nullptr && one->HasHandle(passed)) return true;
  }
  return false;
}

bool ContextPipes::IsOpen(const Passed& passed) {
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  return FindOpen(passed) != nullptr;
}

namespace {

// Whether the driver may take one for the other. A handle by descriptor names
// the process alone.
bool SameHandle(const Passed& one, const Passed& other) {
  return one.way == other.way &&
         std::memcmp(one.handle, other.handle, sizeof one.handle) == 0 &&
         (one.way != Passed::kByDescriptor || one.id == other.id);
}

}  // namespace

void ContextPipes::BeginOpening(Opening* own) {
  for (Opening* other = openings_; other != nullptr;) {
    if (!SameHandle(other->what, own->what)) {
      other = other->next;
      continue;
    }
    const std::uint32_t seen = opened_.load(std::memory_order_relaxed);
    latch_.unlock();
    base::FutexWait(&opened_, seen, nullptr, false);
    latch_.lock();
    other = openings_;
  }
  own->next = openings_;
  openings_ = own;
}

void ContextPipes::EndOpening(const Opening* own) {
  Opening** at = &openings_;
  while (*at != own) at = &(*at)->next;
  *at = own->next;
  opened_.fetch_add(1, std::memory_order_relaxed);
  base::FutexWake(&opened_, 1 << 30, false);
}

// A driver that has the handle open gives the same mapping once more. If
// another lane has it open for memory that the peer has freed, these are that
// memory's bytes. It is open from before the driver is asked until its close
// has ended. So one thread at a time looks, asks and lists, for each handle.
// The driver may be slow: threads with other handles do not wait for it.
std::shared_ptr<Import> ContextPipes::Open(const Passed& passed, int fd) {
  const base::Critical critical;
  Opening own{passed, nullptr};
  std::shared_ptr<CudaImport> open;
  bool old = false;
  {
    const base::LatchGuard hold(latch_);
    BeginOpening(&own);
    open = FindOpen(passed);
    old = HasHandle(passed);
  }
  std::shared_ptr<CudaImport> made;
  const bool used = open != nullptr && open->Use();
  if (!used && !old) made = CudaImport::Make(this, passed, fd);
  const base::LatchGuard hold(latch_);
  if (made != nullptr) made = Kept(&imports_, std::move(made));
  EndOpening(&own);
  return used ? open : made;
}

// Another thread may have been changing the list, so the child leaves the list
// alone.
void ForkChildContexts() { registry.store(nullptr, std::memory_order_release); }

}  // namespace rcsock::gpu::cuda
