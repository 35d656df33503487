#ifndef RCSOCK_LIB_BASE_NO_CANCEL_H_
#define RCSOCK_LIB_BASE_NO_CANCEL_H_

#include <pthread.h>

namespace rcsock::base {

// A stretch in which pthread_cancel waits: around calls of others that may be
// cancellation points where a latch is held, or where nothing may be unwound.
// (A software provider rings its doorbell by write(2).)
class NoCancel {
 public:
  NoCancel() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { ::pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = 0;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_NO_CANCEL_H_
