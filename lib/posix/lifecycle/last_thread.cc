#include "lib/posix/lifecycle/last_thread.h"

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
#include "lib/posix/lifecycle/above.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"

namespace rcsock::posix {
namespace {

using rendezvous::Conductor;

constexpr std::uint32_t kFirstLookMs = 2;
constexpr std::uint32_t kLastLookMs = 64;

RCSOCK_START_DATA constinit pthread_key_t key = 0;
RCSOCK_START_DATA constinit bool known = false;
RCSOCK_START_DATA constinit std::atomic<bool> ended{false};
// The status that the first thread has given to SYS_exit, if it has called
// that.  The process then ends with this status, and runs no handlers of
// atexit.
RCSOCK_START_DATA constinit std::atomic<int> raw_status{-1};
// The signals that the first thread had blocked at its end. exit runs with
// these blocked.
constinit sigset_t blocked = {};

// libc's own count of threads that have not ended, by which it decides when to
// call exit.  glibc shows it to debuggers.  Null: libc does not show it.
constinit std::atomic<const unsigned*> libc_threads{nullptr};

// Returns whether the conductor's threads and rcsock's helpers are the only
// ones left. A thread of rcsock's that waits for a device is short-lived. Until
// its end that thread counts as one of the program's.
bool Alone() {
  // A thread that left by SYS_exit stays in libc's count.  So do the parent's
  // threads in a child of clone.  The count then never falls to 1.
  const unsigned* count = libc_threads.load(std::memory_order_relaxed);
  const auto ours = static_cast<unsigned>(Conductor::Threads() +
                                          Above::Get().HelperThreads());
  if (count != nullptr && raw_status.load(std::memory_order_relaxed) < 0 &&
      __atomic_load_n(count, __ATOMIC_RELAXED) == ours) {
    return true;
  }
  // The first thread is there, or is a zombie until the others have ended.  A
  // directory has two links of its own.
  constexpr nlink_t kFirst = 2 + 1;
  struct stat status {};
  return ::stat("/proc/self/task", &status) == 0 &&
         status.st_nlink == kFirst + ours;
}

void* End(void*) {
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  if (const int status = raw_status; status >= 0) {
    AtExit();
    real::_exit(status);
  }
  std::exit(0);
}

// No thread is left that could make a thread, or connect.  The conductor goes
// on meanwhile, since exit may need the conductor for bytes that peers have yet
// to get.
bool EndProcess() {
  pthread_t thread;
  if (real::pthread_create(&thread, nullptr, &End, nullptr) != 0) return false;
  ::pthread_detach(thread);
  return true;
}

// Nothing reports that a thread has ended.  So the conductor looks soon at
// first, then 16 times a second.
void LookAfter(Conductor* conductor, std::uint32_t ms) {
  conductor->After(ms, [conductor, ms] {
    if (!ended.load(std::memory_order_relaxed)) return;
    if (Alone() && EndProcess()) return;
    LookAfter(conductor, std::min(ms * 2, kLastLookMs));
  });
}

// Runs in pthread_exit, but not when main returns or calls exit.
void FirstThreadEnds(void*) {
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  // The calling thread counts until it has left libc.
  libc_threads.store(
      static_cast<const unsigned*>(::dlsym(RTLD_DEFAULT, "__nptl_nthreads")),
      std::memory_order_relaxed);
  // seq_cst, as the start of the conductor.  Either this thread finds the
  // conductor, or the thread that has begun it finds `ended`.  If both do, two
  // rows of looks run, and one of them ends the process.
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
  // Checked first: a filter may allow none of these calls.
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
  if (!ended.load(std::memory_order_seq_cst)) return;
  // A thread has its maker's priority, and the one that ends the process runs
  // the program's code.
  Conductor::PromptOnly();
  LookAfter(conductor, kFirstLookMs);
}

}  // namespace rcsock::posix
