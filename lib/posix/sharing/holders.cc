#include "lib/posix/sharing/holders.h"

#include <sys/mman.h>

#include "lib/base/sealed_memory.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {
namespace {

static_assert(sizeof(Holding) == 64);

constexpr int kMost = 1 << 17;
// The first place says what this is.
constexpr std::size_t kLength = (kMost + 1) * sizeof(Holding);
constexpr std::uint64_t kMagic = 0x31646c686b736372;  // "rcskhld1"

std::atomic<Holding*> table{nullptr};
std::atomic<int> table_fd{-1};
std::atomic<int> next{0};

void* Map(int fd) {
  void* at = ::mmap(nullptr, kLength, PROT_READ | PROT_WRITE,
                    fd >= 0 ? MAP_SHARED | MAP_NORESERVE
                            : MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                    fd, 0);
  return at == MAP_FAILED ? nullptr : at;
}

Holding* MakeTable() {
  // The table's descriptor would be in the child's descriptor table alone.
  if (InBorrowedMemory()) return nullptr;
  base::UniqueFd fd =
      base::CreateSealed("rcsock-holders", kLength, base::Seals::kNoMoreSeals);
  // Without a descriptor fork can still share the table.
  auto* made = static_cast<Holding*>(Map(fd.get()));
  if (made == nullptr) return nullptr;
  made->inode.store(kMagic, std::memory_order_relaxed);
  Holding* none = nullptr;
  if (!table.compare_exchange_strong(none, made)) {
    ::munmap(made, kLength);
    return none;
  }
  table_fd.store(fd.release());
  return made;
}

}  // namespace

void Holding::Less(std::uint32_t what) {
  // release: a sole holder sees the offsets that this holder has added.  If
  // there is no mark, the subtraction frees the place.  If there is a mark, no
  // process can take the place yet.
  const std::uint32_t before = count.fetch_sub(what, std::memory_order_acq_rel);
  if (before != what && (before & ~kMarks) == what) {
    count.store(0, std::memory_order_release);
  }
}

bool Holding::AloneIs(bool owns) const {
  const std::uint32_t now = count.load(std::memory_order_seq_cst);
  return (now & ~kHidden) == 1 && ((now & kHidden) == 0 || owns);
}

bool Holding::Hide() {
  std::uint32_t now = count.load(std::memory_order_seq_cst);
  while ((now & ~kMarks) != 0 && (now & kHidden) / kOneHidden < kMostHidden) {
    if (count.compare_exchange_weak(now, now + kOneHidden)) return true;
  }
  return false;
}

int MakeHolding() {
  Holding* at = table.load(std::memory_order_acquire);
  if (at == nullptr) at = MakeTable();
  if (at == nullptr) return -1;
  const int first = next.load(std::memory_order_relaxed);
  // A full table is not searched for each of many connections.
  constexpr int kMostLooks = 512;
  for (int i = 0; i < kMostLooks; ++i) {
    const int number = (first + i) % kMost;
    Holding& one = at[1 + number];
    std::uint32_t free = 0;
    if (one.count.load(std::memory_order_relaxed) != 0 ||
        !one.count.compare_exchange_strong(free, 1)) {
      continue;
    }
    one.inode.store(0, std::memory_order_relaxed);
    one.claim.word.store(Claim::kKernels, std::memory_order_relaxed);
    one.owner.store(0, std::memory_order_relaxed);
    one.unread.store(0, std::memory_order_relaxed);
    one.tx.store(0, std::memory_order_relaxed);
    one.rx.store(0, std::memory_order_relaxed);
    next.store(number + 1, std::memory_order_relaxed);
    return number;
  }
  next.store((first + kMostLooks) % kMost, std::memory_order_relaxed);
  return -1;
}

Holding* FindHolding(int number) {
  Holding* at = table.load(std::memory_order_acquire);
  return at == nullptr || number < 0 || number >= kMost ? nullptr
                                                        : at + 1 + number;
}

int HoldingsFd() { return table_fd.load(std::memory_order_acquire); }

bool TakeHoldings(int fd) {
  if (table.load() != nullptr || base::SealedSize(fd) != kLength) return false;
  auto* at = static_cast<Holding*>(Map(fd));
  if (at == nullptr) return false;
  if (at->inode.load(std::memory_order_relaxed) != kMagic) {
    ::munmap(at, kLength);
    return false;
  }
  table.store(at, std::memory_order_release);
  table_fd.store(base::RelocateHigh(fd), std::memory_order_release);
  return true;
}

}  // namespace rcsock::posix
