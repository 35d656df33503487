#include "lib/posix/sharing/forks.h"

#include <atomic>
#include <cstdint>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/sleep.h"
#include "lib/base/start_data.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

constinit thread_local int tls_forks_under_way = 0;

}  // namespace

RCSOCK_START_DATA constinit std::atomic<int> forks_under_way{0};
RCSOCK_START_DATA constinit std::atomic<int> spawns_under_way{0};

void BeginFork() {
  // Forks that handlers have jumped out of are over.
  if (tls_forks_under_way != 0 && !InHandler()) {
    forks_under_way.fetch_sub(tls_forks_under_way);
    tls_forks_under_way = 0;
  }
  ++tls_forks_under_way;
  forks_under_way.fetch_add(1);
  CountTableCopy();
  // TryAdopt sets the mode of a stream, fences, and asks whether a fork is
  // under way.  The forking thread counts its fork, fences, and then asks for
  // the modes.  One of the two sees the other.
  base::FullFence();
}

void EndFork() {
  if (tls_forks_under_way == 0) return;
  --tls_forks_under_way;
  forks_under_way.fetch_sub(1);
}

void AwaitForks(std::uint64_t deadline_ns) {
  // A handler has interrupted this thread's forks, and is not to return.
  const auto others = [] {
    return forks_under_way.load(std::memory_order_seq_cst) >
           tls_forks_under_way;
  };
  while (others() && base::NowNs() < deadline_ns) base::SleepThrough(200'000);
}

void EndForks() {
  forks_under_way.fetch_sub(tls_forks_under_way);
  tls_forks_under_way = 0;
}

void ForksForkChild() {
  // A handler of this thread may have interrupted a fork of this thread, and
  // forked too.
  forks_under_way.store(tls_forks_under_way, std::memory_order_relaxed);
  spawns_under_way.store(0, std::memory_order_relaxed);
}

SpawnUnderWay::SpawnUnderWay() {
  spawns_under_way.fetch_add(1);
  CountTableCopy();
}

SpawnUnderWay::~SpawnUnderWay() { spawns_under_way.fetch_sub(1); }

}  // namespace rcsock::posix
