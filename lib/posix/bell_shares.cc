#include "lib/posix/bell_shares.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "lib/lane/shm/layout.h"

namespace rcsock::posix {
namespace {

using lane::kBells;

constexpr int kFirst = lane::shm::kSetBells;
// Where descriptors are scarce, as many as these and no more.
constexpr int kLeast = 6;

constinit std::atomic<int> holders[kBells] = {};

constinit std::atomic<unsigned> threads{0};
// (Not of the initial-exec model: gold takes a local variable of that for the
// library's first.)
thread_local constinit int tls_queue = 0;

// A `part` of the descriptors that the process may have.
int Most(rlim_t part) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  return static_cast<int>(
      std::clamp<rlim_t>(limit.rlim_cur / part, kLeast, kBells - kFirst));
}

}  // namespace

// (Two that come at once may take the same: the worst of that is a wake-up that
// was the other's.)
int TakeBell(bool thread) {
  const int most = Most(32);
  int best = kFirst;
  int fewest = -1;
  for (int i = 0; i < most; ++i) {
    const int bell = kFirst + (thread ? most - 1 - i : i);
    const int count = holders[bell].load(std::memory_order_relaxed);
    if (fewest >= 0 && count >= fewest) continue;
    best = bell;
    fewest = count;
    if (count == 0) break;
  }
  holders[best].fetch_add(1, std::memory_order_relaxed);
  return best;
}

void GiveBell(int bell) {
  if (bell < kFirst || bell >= kBells) return;
  holders[bell].fetch_sub(1, std::memory_order_relaxed);
}

int QueueOfThread() {
  if (tls_queue == 0) {
    const unsigned n = threads.fetch_add(1, std::memory_order_relaxed);
    // (A queue is three descriptors or four.)
    tls_queue =
        kBells - 1 - static_cast<int>(n % static_cast<unsigned>(Most(64)));
  }
  return tls_queue;
}

void ForgetBells() {
  for (auto& count : holders) count.store(0, std::memory_order_relaxed);
}

}  // namespace rcsock::posix
