#include "lib/base/alone.h"

#include "lib/base/cancellation.h"
#include "lib/base/direct.h"
#include "lib/base/start_data.h"

namespace rcsock::base {
namespace {

// Constructors of libraries may make threads before ours runs.
RCSOCK_START_DATA constinit std::atomic<bool> ended{false};

}  // namespace

// The two lie side by side: calls read both.
RCSOCK_START_DATA constinit std::atomic<bool> alone{false};
RCSOCK_START_DATA constinit std::atomic<bool> cancels{false};

[[gnu::cold]] void BeginAlone() {
  if (ended.load(std::memory_order_relaxed) || !direct::AllOfLibc()) return;
  alone.store(true, std::memory_order_relaxed);
}

void EndAlone() {
  ended.store(true, std::memory_order_relaxed);
  alone.store(false, std::memory_order_relaxed);
}

}  // namespace rcsock::base
