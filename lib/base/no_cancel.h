#ifndef RCSOCK_LIB_BASE_NO_CANCEL_H_
#define RCSOCK_LIB_BASE_NO_CANCEL_H_

#include <pthread.h>

#include "lib/base/alone.h"

namespace rcsock::base {

// A scope in which pthread_cancel waits. Use it around calls into other
// libraries that may be cancellation points, where a latch is held or nothing
// may be unwound. For example, a software provider rings its doorbell by
// write(2).
class NoCancel {
 public:
  NoCancel() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { ::pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = 0;
};

// As NoCancel, inside a critical section, where no handler runs. So while the
// program has one thread, nothing cancels this one meanwhile.
class NoCancelInCritical {
 public:
  NoCancelInCritical() {
    if (!alone_) ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);
  }
  ~NoCancelInCritical() {
    if (!alone_) ::pthread_setcancelstate(before_, nullptr);
  }
  NoCancelInCritical(const NoCancelInCritical&) = delete;
  NoCancelInCritical& operator=(const NoCancelInCritical&) = delete;

 private:
  const bool alone_ = Alone();
  int before_ = 0;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_NO_CANCEL_H_
