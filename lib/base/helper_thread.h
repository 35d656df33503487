#ifndef RCSOCK_LIB_BASE_HELPER_THREAD_H_
#define RCSOCK_LIB_BASE_HELPER_THREAD_H_

#include <pthread.h>

#include <cerrno>
#include <cstddef>

namespace rcsock::base {

// Starts a thread for calls that may block in the kernel; detached.  It
// inherits the conductor's signal mask: signals are the application's.  0 or an
// errno.
inline int StartHelper(void* (*body)(void*), void* argument) {
  // The thread makes a call or two; what the program has as thread-local memory
  // is taken from it too.
  constexpr std::size_t kStackSize = 256 << 10;
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return EAGAIN;
  ::pthread_attr_setstacksize(&attributes, kStackSize);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = ::pthread_create(&thread, &attributes, body, argument);
  ::pthread_attr_destroy(&attributes);
  return error;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_HELPER_THREAD_H_
