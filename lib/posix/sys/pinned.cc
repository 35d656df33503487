#include "lib/posix/sys/pinned.h"

#include <atomic>

#include "lib/base/start_data.h"

namespace rcsock::posix {
namespace {

RCSOCK_START_DATA std::atomic<base::Reason> process_pinned{base::Reason::kNone};

}  // namespace

RCSOCK_START_DATA constinit std::atomic<bool> all_calls_seen{false};

// A thread that pins the process stores the reason, and then clears the flag.
void SetAllCallsSeen(bool seen) {
  all_calls_seen.store(seen);
  if (process_pinned.load() != base::Reason::kNone) all_calls_seen.store(false);
}

base::Reason ProcessPinned() {
  return process_pinned.load(std::memory_order_relaxed);
}

void MarkPinned(base::Reason reason) {
  // seq_cst: a thread that makes a stream eligible looks at this afterwards.
  auto none = base::Reason::kNone;
  process_pinned.compare_exchange_strong(none, reason);
  all_calls_seen.store(false);
}

bool MarkSandboxed() {
  const bool first = process_pinned.exchange(base::Reason::kSandboxed) !=
                     base::Reason::kSandboxed;
  all_calls_seen.store(false);
  return first;
}

}  // namespace rcsock::posix
