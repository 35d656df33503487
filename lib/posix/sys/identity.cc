#include "lib/posix/sys/identity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "lib/base/start_data.h"

namespace rcsock::posix {
namespace {

RCSOCK_START_DATA std::atomic<long> own_pid{0};
RCSOCK_START_DATA std::atomic<Face> own_face{Face::kPreload};

}  // namespace

Face OwnFace() { return own_face.load(std::memory_order_relaxed); }

void SetOwnFace(Face face) { own_face.store(face, std::memory_order_relaxed); }

bool InBorrowedMemory() {
  const long pid = own_pid.load(std::memory_order_relaxed);
  return pid != 0 && pid != ::syscall(SYS_getpid);
}

long OwnPid() { return own_pid.load(std::memory_order_relaxed); }

void KnowOwnPid() {
  own_pid.store(::syscall(SYS_getpid), std::memory_order_relaxed);
}

}  // namespace rcsock::posix
