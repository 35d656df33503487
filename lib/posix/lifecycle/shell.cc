#include "lib/posix/lifecycle/shell.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lib/base/latch.h"
#include "lib/base/real.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

// Several commands may run.  The signals are ignored from the first to the
// last.
constinit base::Latch latch;
constinit int count RC_GUARDED_BY(latch) = 0;
constinit struct sigaction interrupt RC_GUARDED_BY(latch) {};
constinit struct sigaction quit RC_GUARDED_BY(latch) {};

class Waiting {
 public:
  Waiting() {
    ::sigemptyset(&defaults_);
    {
      // A handler may call system(), too.
      const Critical critical;
      latch.lock();
      if (count++ == 0) {
        struct sigaction ignore {};
        ignore.sa_handler = SIG_IGN;
        real::sigaction(SIGINT, &ignore, &interrupt);
        real::sigaction(SIGQUIT, &ignore, &quit);
      }
      if (interrupt.sa_handler != SIG_IGN) ::sigaddset(&defaults_, SIGINT);
      if (quit.sa_handler != SIG_IGN) ::sigaddset(&defaults_, SIGQUIT);
      latch.unlock();
    }
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &child, &mask_);
  }
  // On cancellation too: then no thread waits for the command any more.
  ~Waiting() {
    const int saved = errno;
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      while (::syscall(SYS_wait4, child_, nullptr, 0, nullptr) < 0 &&
             errno == EINTR) {
      }
    }
    {
      const Critical critical;
      latch.lock();
      if (--count == 0) {
        real::sigaction(SIGINT, &interrupt, nullptr);
        real::sigaction(SIGQUIT, &quit, nullptr);
      }
      latch.unlock();
    }
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    errno = saved;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  int Run(const char* command, char* const environment[]) {
    posix_spawnattr_t how;
    ::posix_spawnattr_init(&how);
    ::posix_spawnattr_setsigmask(&how, &mask_);
    ::posix_spawnattr_setsigdefault(&how, &defaults_);
    ::posix_spawnattr_setflags(&how,
                               POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    const char* words[] = {"sh", "-c", command, nullptr};
    pid_t child;
    const int error = real::posix_spawn(&child, "/bin/sh", nullptr, &how,
                                        const_cast<char**>(words), environment);
    ::posix_spawnattr_destroy(&how);
    constexpr int kNoShell = 127 << 8;
    if (error != 0) {  // glibc's answer, also for want of a process
      errno = error;
      return kNoShell;
    }
    child_ = child;
    int status = -1;
    while (::waitpid(child, &status, 0) < 0) {
      if (errno != EINTR) {
        status = -1;
        break;
      }
    }
    child_ = 0;
    return status;
  }

 private:
  sigset_t defaults_;
  sigset_t mask_;
  pid_t child_ = 0;
};

}  // namespace

int SystemWith(const char* command, char* const environment[]) {
  Waiting waiting;
  return waiting.Run(command, environment);
}

namespace {

// The latch of popen, and the thread that holds it (0: none).  A handler that
// calls popen may have interrupted that thread.
constinit base::Latch popen_latch;
constinit std::atomic<long> popen_owner{0};
// While `environ` is changed: what it was before, and the last list that it was
// changed to.
constinit std::atomic<bool> popen_changes{false};
constinit std::atomic<char**> popen_before{nullptr};
constinit std::atomic<char**> popen_last{nullptr};

std::atomic_ref<char**> Variable() { return std::atomic_ref<char**>(environ); }

bool IsSame(char* const list[], char* const with[], std::size_t strings) {
  std::size_t at = 0;
  while (at + 1 < strings && list[at] == with[at]) ++at;
  return at + 1 == strings && list[at] != nullptr && list[strings] == nullptr &&
         std::strcmp(list[at], with[at]) == 0;
}

// Returns a kept list equal to `with`, or makes a new list.  All lists are
// kept, linked by the word before their first string.  They differ in the names
// of what is handed over, which are few.
char** Kept(char* const with[], std::size_t strings) {
  static constinit char** all = nullptr;  // guarded by popen_latch
  for (char** list = all; list != nullptr;
       list = reinterpret_cast<char**>(list[-1])) {
    if (IsSame(list, with, strings)) return list;
  }
  // The last string is on the stack, so a copy goes behind the array.
  const std::size_t array = (strings + 1) * sizeof(char*);
  const std::size_t length = std::strlen(with[strings - 1]) + 1;
  auto* block =
      static_cast<char**>(std::malloc(sizeof(char*) + array + length));
  if (block == nullptr) return nullptr;
  char** const list = block + 1;
  list[-1] = reinterpret_cast<char*>(all);
  all = list;
  std::memcpy(list, with, array);
  list[strings - 1] = reinterpret_cast<char*>(list + strings + 1);
  std::memcpy(list[strings - 1], with[strings - 1], length);
  return list;
}

void PutBack() {
  if (!popen_changes.load(std::memory_order_relaxed)) return;
  // A program that has set variables meanwhile has another list now.
  char** changed = popen_last.load(std::memory_order_relaxed);
  Variable().compare_exchange_strong(
      changed, popen_before.load(std::memory_order_relaxed));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  popen_changes.store(false, std::memory_order_relaxed);
}

}  // namespace

// A thread may read `environ` during one popen, and popen_last during the next.
// It then takes the first popen's list for the program's.  The strings of that
// list stay for good.  The next handover removes the older handover's name from
// the list.
char** ProgramEnvironment() {
  char** const now = Variable().load(std::memory_order_acquire);
  if (now == nullptr || now != popen_last.load(std::memory_order_relaxed)) {
    return now;
  }
  return popen_before.load(std::memory_order_relaxed);
}

// The latch is held from here to the destructor, unless a handler has
// interrupted its holder.
PopenEnvironment::PopenEnvironment(char* const with[]) RC_NO_LOCK_CHECK {
  {
    // No handler may find the latch held without an owner.
    const Critical critical;
    const long self = ::syscall(SYS_gettid);
    within_ = popen_owner.load(std::memory_order_relaxed) == self;
    if (!within_) {
      popen_latch.lock();
      popen_owner.store(self, std::memory_order_relaxed);
    }
  }
  own_ = ProgramEnvironment();
  if (within_) {
    // The outer popen finds all as it was, wherever it was interrupted.  What
    // it hands over is not for this command.
    found_ = {Variable().load(std::memory_order_relaxed),
              popen_before.load(std::memory_order_relaxed),
              popen_last.load(std::memory_order_relaxed),
              popen_changes.load(std::memory_order_relaxed)};
    Variable().store(own_, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  if (with == nullptr) return;
  std::size_t count = 0;
  while (with[count] != nullptr) ++count;
  char** const list = Kept(with, count);
  if (list == nullptr) return;
  popen_last.store(list, std::memory_order_relaxed);
  popen_before.store(own_, std::memory_order_relaxed);
  // This order: another thread may fork at any moment, and its child puts back
  // the list that it finds changed.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  popen_changes.store(true, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Variable().store(list, std::memory_order_release);
}

PopenEnvironment::~PopenEnvironment() RC_NO_LOCK_CHECK {
  PutBack();
  if (within_) {
    popen_last.store(found_.last, std::memory_order_relaxed);
    popen_before.store(found_.before, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    popen_changes.store(found_.changes, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // As in PutBack.
    Variable().compare_exchange_strong(own_, found_.variable);
    return;
  }
  const Critical critical;
  // In a child of a fork made meanwhile, no thread holds the latch.
  if (popen_owner.load(std::memory_order_relaxed) != ::syscall(SYS_gettid)) {
    return;
  }
  popen_owner.store(0, std::memory_order_relaxed);
  popen_latch.unlock();
}

void ShellForkLock() { latch.LockForFork(); }
void ShellForkUnlock(bool child) { latch.UnlockAfterFork(child); }

void ShellForkChild() {
  // Another thread's popen goes on in the parent alone.
  PutBack();
  popen_owner.store(0, std::memory_order_relaxed);
  popen_latch.Reset();
}

}  // namespace rcsock::posix
