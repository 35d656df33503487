#ifndef RCSOCK_LIB_POSIX_THREAD_WAIT_MASK_H_
#define RCSOCK_LIB_POSIX_THREAD_WAIT_MASK_H_

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/base/no_sigpipe.h"

namespace rcsock::posix {

// A call's signal mask.  The kernel puts the mask in force only together with
// the wait, and takes it back with the wait.  So a signal that the mask lets
// through ends the wait, or is not delivered.  Meanwhile the signals that it
// blocks are blocked.
class WaitMask {
 public:
  explicit WaitMask(const sigset_t* mask) : mask_(mask) {}
  ~WaitMask() {
    if (!blocked_) return;
    const int saved = errno;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved;
  }
  WaitMask(const WaitMask&) = delete;
  WaitMask& operator=(const WaitMask&) = delete;
  // Null: there is none.
  const sigset_t* get() const { return mask_; }
  // Whether its signals are blocked.
  bool InForce() const { return mask_ == nullptr || blocked_; }
  // Blocks the mask's signals.  Call it after the first look, which needs no
  // system call if it finds something.  If it returns true, the signals are
  // blocked from now on, and what interrupted the thread before came before the
  // wait.
  bool Block() {
    if (mask_ == nullptr || blocked_) return false;
    // Has only the one word that the kernel reads, which the caller has
    // checked.  Faults stay unblocked.  If the program has no room for what is
    // ready, the fault becomes EFAULT (base/guard.h).  With the fault blocked,
    // the kernel would end the process.
    sigset_t mask;
    ::sigemptyset(&mask);
    std::memcpy(&mask, mask_, sizeof(std::uint64_t));
    ::sigdelset(&mask, SIGSEGV);
    ::sigdelset(&mask, SIGBUS);
    base::ForgetMask();
    return blocked_ = ::pthread_sigmask(SIG_BLOCK, &mask, &before_) == 0;
  }

 private:
  const sigset_t* mask_;
  sigset_t before_;
  bool blocked_ = false;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_THREAD_WAIT_MASK_H_
