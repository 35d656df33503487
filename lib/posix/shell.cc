#include "lib/posix/shell.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/latch.h"
#include "lib/base/real.h"

namespace rcsock::posix {
namespace {

// Several may run; the signals are ignored from the first to the last.
constinit base::Latch latch;
constinit int count = 0;
constinit struct sigaction interrupt {};
constinit struct sigaction quit {};

class Waiting {
 public:
  Waiting() {
    latch.lock();
    if (count++ == 0) {
      struct sigaction ignore {};
      ignore.sa_handler = SIG_IGN;
      real::sigaction(SIGINT, &ignore, &interrupt);
      real::sigaction(SIGQUIT, &ignore, &quit);
    }
    ::sigemptyset(&defaults_);
    if (interrupt.sa_handler != SIG_IGN) ::sigaddset(&defaults_, SIGINT);
    if (quit.sa_handler != SIG_IGN) ::sigaddset(&defaults_, SIGQUIT);
    latch.unlock();
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &child, &mask_);
  }
  // By cancellation too: then nobody waits for the command any more.
  ~Waiting() {
    const int saved = errno;
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      while (::syscall(SYS_wait4, child_, nullptr, 0, nullptr) < 0 &&
             errno == EINTR) {
      }
    }
    latch.lock();
    if (--count == 0) {
      real::sigaction(SIGINT, &interrupt, nullptr);
      real::sigaction(SIGQUIT, &quit, nullptr);
    }
    latch.unlock();
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
    if (error != 0) {  // as glibc says it, for want of a process too
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

void ShellForkLock() { latch.lock(); }
void ShellForkUnlock() { latch.unlock(); }

}  // namespace rcsock::posix
