#include "lib/posix/thread/bell_shares.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "lib/lane/bell_cpu.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::posix {
namespace {

using lane::kBells;

constexpr int kFirst = lane::shm::kSetBells;
// If descriptors are scarce, this many bells and no more.
constexpr int kLeast = 6;

constinit std::atomic<int> holders[kBells] = {};

constinit std::atomic<int> queue_holders[kBells] = {};
// Not of the initial-exec model: gold takes a local variable of that model for
// the library's first.
thread_local constinit int tls_queue = 0;

// A `part` of the descriptors that the process may have.
int Most(rlim_t part) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  return static_cast<int>(
      std::clamp<rlim_t>(limit.rlim_cur / part, kLeast, kBells - kFirst));
}

// Takes one of `most` bells, from `first` on by `step`: a free bell, or the
// bell with the fewest holders.  Two threads at once may take one bell.  At
// worst one of them is then woken for the other.
int TakeFewest(std::atomic<int> (&counts)[kBells], int first, int step,
               int most) {
  int best = first;
  int fewest = -1;
  for (int i = 0; i < most && fewest != 0; ++i) {
    const int bell = first + i * step;
    const int count = counts[bell].load(std::memory_order_relaxed);
    if (fewest >= 0 && count >= fewest) continue;
    best = bell;
    fewest = count;
  }
  counts[best].fetch_add(1, std::memory_order_relaxed);
  return best;
}

}  // namespace

int TakeBell(bool thread) {
  const int most = Most(32);
  const int bell = thread ? TakeFewest(holders, kFirst + most - 1, -1, most)
                          : TakeFewest(holders, kFirst, 1, most);
  // The conductor may take a set's bell: see Interests::Bell.
  lane::bell_cpus[bell].store(0, std::memory_order_relaxed);
  if (thread) lane::NoteBellCpu(bell);
  return bell;
}

void GiveBell(int bell) {
  if (bell < kFirst || bell >= kBells) return;
  holders[bell].fetch_sub(1, std::memory_order_relaxed);
}

int QueueOfThread() {
  // A queue takes three or four descriptors.
  if (tls_queue == 0) {
    tls_queue = TakeFewest(queue_holders, kBells - 1, -1, Most(64));
    lane::NoteBellCpu(tls_queue);
  }
  return tls_queue;
}

void GiveQueueOfThread() {
  if (tls_queue == 0) return;
  queue_holders[tls_queue].fetch_sub(1, std::memory_order_relaxed);
  tls_queue = 0;
}

void ForgetBells() {
  for (auto& count : holders) count.store(0, std::memory_order_relaxed);
  for (auto& count : queue_holders) count.store(0, std::memory_order_relaxed);
  tls_queue = 0;
}

}  // namespace rcsock::posix
