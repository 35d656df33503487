#include "lib/lane/rdma/slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace rcsock::lane::rdma {
namespace {

std::byte* Map(std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  // The device uses the pages too. A child of fork must not turn them into
  // copies, of which the device would keep the wrong one.
  ::madvise(at, bytes, MADV_DONTFORK);
  ::madvise(at, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(at);
}

// At a multiple of kSlab, so that all bytes can be in huge pages.
std::byte* MapAligned(std::size_t bytes, bool huge) {
  constexpr std::size_t kSlab = Slabs::kSlab;
  std::byte* const base = Map(bytes + kSlab);
  if (base == nullptr) return nullptr;
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(base) % kSlab;
  if (before != 0) ::munmap(base, before);
  ::munmap(base + before + bytes, kSlab - before);
  // If the system has no huge pages, these stay as they are.
  if (huge) ::madvise(base + before, bytes, MADV_HUGEPAGE);
  return base + before;
}

}  // namespace

Slabs::~Slabs() {
  for (const Slab& slab : slabs_) ::munmap(slab.base, kSlab);
}

int Slabs::ClassOf(std::size_t bytes) {
  const std::size_t units = (std::max(bytes, kLeast) + kLeast - 1) / kLeast;
  return std::countr_zero(std::bit_ceil(units));
}

std::size_t Slabs::slabs() const {
  base::LatchGuard hold(latch_);
  return slabs_.size();
}

bool Slabs::AddSlab(int size_class) {
  const std::size_t block = kLeast << size_class;
  const auto same =
      std::count_if(slabs_.begin(), slabs_.end(),
                    [block](const Slab& slab) { return slab.block == block; });
  std::vector<std::byte*>& free = free_[size_class];
  try {
    // Room for all blocks, so that Give never allocates.
    free.reserve((static_cast<std::size_t>(same) + 1) * (kSlab / block));
    slabs_.reserve(slabs_.size() + 1);
  } catch (const std::bad_alloc&) {
    return false;
  }
  std::byte* base = MapAligned(kSlab, huge_ && (size_class != 0 || same != 0));
  if (base == nullptr) return false;
  slabs_.push_back({base, block, 0});
  for (std::size_t at = kSlab; at != 0; at -= block) {
    free.push_back(base + at - block);
  }
  return true;
}

Slabs::Slab* Slabs::SlabOf(const std::byte* block) {
  for (Slab& slab : slabs_) {
    if (block >= slab.base && block < slab.base + kSlab) return &slab;
  }
  return nullptr;
}

std::byte* Slabs::Take(std::size_t bytes) {
  if (!Shares(bytes)) {
    return huge_ && bytes >= kSlab ? MapAligned(bytes, true) : Map(bytes);
  }
  const int size_class = ClassOf(bytes);
  std::byte* base;
  {
    base::LatchGuard hold(latch_);
    std::vector<std::byte*>& free = free_[size_class];
    if (free.empty() && !AddSlab(size_class)) return nullptr;
    base = free.back();
    free.pop_back();
    ++SlabOf(base)->used;
  }
  // The next peer must not see what an earlier peer has sent.
  std::memset(base, 0, bytes);
  return base;
}

void Slabs::Give(std::byte* base, std::size_t bytes) {
  if (!Shares(bytes)) {
    ::munmap(base, bytes);
    return;
  }
  const int size_class = ClassOf(bytes);
  base::LatchGuard hold(latch_);
  std::vector<std::byte*>& free = free_[size_class];
  free.push_back(base);
  Slab* const slab = SlabOf(base);
  // The next lane will want small blocks again. So memory that a ring had grown
  // to goes back to the system.
  if (--slab->used != 0 || size_class == 0) return;
  std::byte* const begin = slab->base;
  std::erase_if(free, [begin](const std::byte* block) {
    return block >= begin && block < begin + kSlab;
  });
  slabs_.erase(slabs_.begin() + (slab - slabs_.data()));
  ::munmap(begin, kSlab);
}

}  // namespace rcsock::lane::rdma
