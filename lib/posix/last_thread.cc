#include "lib/posix/last_thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "lib/base/real.h"
#include "lib/base/start_data.h"
#include "lib/posix/process.h"
#include "lib/posix/uring_held.h"

namespace rcsock::posix {
namespace {

using rendezvous::Conductor;

constexpr std::uint32_t kFirstLookMs = 2;
constexpr std::uint32_t kLastLookMs = 64;

RCSOCK_START_DATA constinit pthread_key_t key = 0;
RCSOCK_START_DATA constinit bool known = false;
RCSOCK_START_DATA constinit std::atomic<bool> ended{false};
// What it has given to SYS_exit, if it has: the process ends with that, and
// runs no handlers of atexit.
RCSOCK_START_DATA constinit std::atomic<int> raw_status{-1};
// What the first thread had blocked in the end: exit runs with that.
constinit sigset_t blocked = {};

// libc's own count of threads that have not ended, which says to it when to
// call exit; null: it does not show it.  (glibc does, to debuggers.)
constinit std::atomic<const unsigned*> libc_threads{nullptr};

// A thread of rcsock's that waits for a device is short-lived: it is one more
// until then.
bool Alone() {
  // (Who has left by SYS_exit is still in libc's count, and so are the parent's
  // threads in a child of clone: then it never falls to one.)
  const unsigned* count = libc_threads.load(std::memory_order_relaxed);
  const auto helpers = static_cast<unsigned>(uring::HelperThreads());
  if (count != nullptr && raw_status.load(std::memory_order_relaxed) < 0 &&
      __atomic_load_n(count, __ATOMIC_RELAXED) == 1 + helpers) {
    return true;
  }
  // The first thread is there, or a zombie until the others have ended, and a
  // directory has two links of its own.
  constexpr nlink_t kFirstAndConductor = 2 + 2;
  struct stat status {};
  return ::stat("/proc/self/task", &status) == 0 &&
         status.st_nlink == kFirstAndConductor + helpers;
}

void* End(void*) {
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  if (const int status = raw_status; status >= 0) {
    AtExit();
    real::_exit(status);
  }
  std::exit(0);
}

// Nobody is left who could make a thread, or connect.  The conductor goes on
// meanwhile: exit may need it, for what is still owed to peers.
bool EndProcess() {
  pthread_t thread;
  if (real::pthread_create(&thread, nullptr, &End, nullptr) != 0) return false;
  ::pthread_detach(thread);
  return true;
}

// Nothing tells that a thread has ended: a look, soon at first, then 16 times a
// second.
void LookAfter(Conductor* conductor, std::uint32_t ms) {
  conductor->After(ms, [conductor, ms] {
    if (!ended.load(std::memory_order_relaxed)) return;
    if (Alone() && EndProcess()) return;
    LookAfter(conductor, std::min(ms * 2, kLastLookMs));
  });
}

// Runs in pthread_exit, and not where main returns or calls exit.
void FirstThreadEnds(void*) {
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  // (This thread is still one of them, and is counted until it has left libc.)
  libc_threads.store(
      static_cast<const unsigned*>(::dlsym(RTLD_DEFAULT, "__nptl_nthreads")),
      std::memory_order_relaxed);
  // seq_cst, as the conductor's beginning: either this finds the conductor, or
  // who has begun it finds this.  (Both: two rows of looks, of which one ends
  // the process.)
  ended.store(true, std::memory_order_seq_cst);
  if (Conductor* conductor = Conductor::IfRunning()) WatchLastThread(conductor);
}

}  // namespace

[[gnu::cold]] void KnowFirstThread() {
  ended.store(false, std::memory_order_relaxed);
  raw_status.store(-1, std::memory_order_relaxed);
  if (::syscall(SYS_gettid) != OwnPid()) return;
  if (!known) known = ::pthread_key_create(&key, &FirstThreadEnds) == 0;
  if (known) ::pthread_setspecific(key, &known);
}

bool LastThreadEnds(int status) {
  // (First: a filter may know none of these calls.)
  if (ProcessPinned() == base::Reason::kSandboxed || InBorrowedMemory() ||
      ::syscall(SYS_gettid) != ::syscall(SYS_getpid)) {
    return false;
  }
  if (Conductor::IfRunning() != nullptr && Alone()) return true;
  raw_status = status & 0xff;
  FirstThreadEnds(nullptr);
  return false;
}

void WatchLastThread(Conductor* conductor) {
  if (ended.load(std::memory_order_seq_cst)) LookAfter(conductor, kFirstLookMs);
}

}  // namespace rcsock::posix
