#include "lib/base/alone.h"

#include "lib/base/cancellation.h"
#include "lib/base/direct.h"
#include "lib/base/start_data.h"

namespace rcsock::base {
namespace {

// Constructors of libraries may make threads before ours runs.
RCSOCK_START_DATA constinit std::atomic<bool> ended{false};

}  // namespace

// These lie side by side: calls read them all.
RCSOCK_START_DATA constinit std::atomic<bool> alone{false};
RCSOCK_START_DATA constinit std::atomic<bool> lone{false};
RCSOCK_START_DATA constinit std::atomic<bool> cancels{false};

[[gnu::cold]] void BeginAlone() {
  if (ended.load(std::memory_order_relaxed) || !direct::AllOfLibc()) return;
  alone.store(true, std::memory_order_relaxed);
  lone.store(true, std::memory_order_relaxed);
}

void EndAlone() {
  ended.store(true, std::memory_order_relaxed);
  alone.store(false, std::memory_order_relaxed);
  lone.store(false, std::memory_order_relaxed);
}

void EndLone() { lone.store(false, std::memory_order_relaxed); }

void LoneForkChild() {
  lone.store(alone.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace rcsock::base
