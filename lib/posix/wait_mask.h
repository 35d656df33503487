#ifndef RCSOCK_LIB_POSIX_WAIT_MASK_H_
#define RCSOCK_LIB_POSIX_WAIT_MASK_H_

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/base/no_sigpipe.h"

namespace rcsock::posix {

// A call's signal mask, which only the kernel's wait puts in force, and takes
// back, together with the wait: a signal that it lets through ends the wait, or
// has not been delivered.  Meanwhile what it blocks is blocked too.
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
  // Whether what it blocks is blocked.
  bool InForce() const { return mask_ == nullptr || blocked_; }
  // (A first look that finds something needs no system call.)
  // True: only now, so that what has interrupted the thread so far has come
  // before the wait.
  bool Block() {
    if (mask_ == nullptr || blocked_) return false;
    // The kernel's word alone, which the caller has looked at.  But for faults:
    // what is ready is told meanwhile, and where the program has no room for it
    // that is EFAULT (base/guard.h), which a blocked fault would not be.
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

#endif  // RCSOCK_LIB_POSIX_WAIT_MASK_H_
