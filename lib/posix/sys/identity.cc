#include "lib/posix/sys/identity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "lib/base/start_data.h"

namespace rcsock::posix {
namespace {

// As many as are never given back.
constexpr int kForGood = 1 << 24;

}  // namespace

RCSOCK_START_DATA constinit std::atomic<long> own_pid{0};
RCSOCK_START_DATA constinit std::atomic<Face> own_face{Face::kPreload};
RCSOCK_START_DATA constinit std::atomic<int> lendings{0};

RCSOCK_START_DATA constinit std::atomic<std::uint32_t> table_copies{1};

void LendMemory() {
  lendings.fetch_add(1, std::memory_order_relaxed);
  CountTableCopy();
}
void TakeMemoryBack() { lendings.fetch_sub(1, std::memory_order_relaxed); }
void LendMemoryForGood() {
  lendings.fetch_or(kForGood, std::memory_order_relaxed);
}

[[gnu::cold]] void SetOwnFace(Face face) {
  own_face.store(face, std::memory_order_relaxed);
  if (face != Face::kPreload) LendMemoryForGood();
}

bool IsAnotherProcess() {
  const long pid = own_pid.load(std::memory_order_relaxed);
  return pid != 0 && pid != ::syscall(SYS_getpid);
}

// A child of fork keeps the count.  Other threads' calls of vfork do not return
// here, but a handler may have forked within this thread's own.
[[gnu::cold]] void KnowOwnPid() {
  own_pid.store(::syscall(SYS_getpid), std::memory_order_relaxed);
}

}  // namespace rcsock::posix
