#include "lib/posix/sys/pinned.h"

#include <atomic>

#include "lib/base/start_data.h"

namespace rcsock::posix {
namespace {

RCSOCK_START_DATA std::atomic<base::Reason> process_pinned{base::Reason::kNone};

}  // namespace

base::Reason ProcessPinned() {
  return process_pinned.load(std::memory_order_relaxed);
}

void MarkPinned(base::Reason reason) {
  // seq_cst: a thread that makes a stream eligible looks at this afterwards.
  auto none = base::Reason::kNone;
  process_pinned.compare_exchange_strong(none, reason);
}

bool MarkSandboxed() {
  return process_pinned.exchange(base::Reason::kSandboxed) !=
         base::Reason::kSandboxed;
}

}  // namespace rcsock::posix
