#include "lib/rendezvous/start_aside.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "lib/base/alone.h"
#include "lib/base/clock.h"
#include "lib/base/helper_thread.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"
#include "lib/rendezvous/shifts.h"

namespace rcsock::rendezvous {
namespace {

enum : std::uint32_t { kNone, kUnderWay };
constinit std::atomic<std::uint32_t> state{kNone};

constinit std::atomic<void (*)(Conductor*)> introduce{nullptr};
constinit std::atomic<void (*)(Conductor*, base::Reason)> started{nullptr};

// The start may wait for the loader's lock, whose owner may be the thread that
// forks.
constexpr std::uint64_t kMostWaitNs = 100'000'000;

void* StartConductor(void*) {
  ::pthread_setname_np(::pthread_self(), "rcsock-start");
  base::tls_internal = true;
  base::Reason why = base::Reason::kNone;
  Conductor* const conductor = Conductor::Get(&why);
  if (conductor != nullptr) introduce.load()(conductor);
  state.store(kNone, std::memory_order_release);
  base::FutexWake(&state, 1 << 30, false);
  started.load()(conductor, why);
  return nullptr;
}

// Returns false if there is no thread for it.
bool StartAside() {
  const base::InternalScope internal;
  return base::StartHelper(&StartConductor, nullptr, kConductorStack) == 0;
}

}  // namespace

Conductor* GetAside(base::Reason* why, const AsideCalls& calls) {
  Conductor* const running = Conductor::IfRunning();
  if (running != nullptr && !StartsAside()) return running;
  // In a program with one thread nothing waits, and the start takes 0.3 ms.
  if (base::Alone()) return Conductor::Get(why);
  // A failed start makes no thread for each of the streams that look.
  if (!StartsAside()) {
    *why = Conductor::FailedLately();
    if (*why != base::Reason::kNone) return nullptr;
  }
  std::uint32_t now = kNone;
  if (state.compare_exchange_strong(now, kUnderWay, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
    introduce = calls.introduce;
    started = calls.started;
    if (!StartAside()) {
      state.store(kNone, std::memory_order_release);
      return Conductor::Get(why);
    }
  }
  *why = base::Reason::kPending;
  return nullptr;
}

bool StartsAside() {
  return state.load(std::memory_order_acquire) == kUnderWay;
}

void AwaitStartAside() {
  if (!StartsAside()) return;
  const std::uint64_t end = base::NowNs() + kMostWaitNs;
  for (std::uint64_t now = base::NowNs(); now < end && StartsAside();
       now = base::NowNs()) {
    const timespec left{0, static_cast<long>(end - now)};
    base::FutexWait(&state, kUnderWay, &left, false);
  }
}

void StartAsideForkChild() { state.store(kNone, std::memory_order_relaxed); }

}  // namespace rcsock::rendezvous
