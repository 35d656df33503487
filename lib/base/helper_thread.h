#ifndef RCSOCK_LIB_BASE_HELPER_THREAD_H_
#define RCSOCK_LIB_BASE_HELPER_THREAD_H_

#include <pthread.h>

#include <cerrno>
#include <cstddef>

namespace rcsock::base {

// Starts a detached thread for calls that may block in the kernel. The thread
// inherits the caller's signal mask: signals are the application's. Returns 0
// or an errno.
inline int StartHelper(void* (*body)(void*), void* argument) {
  // The thread makes a call or two. The program's thread-local memory is taken
  // from its stack too.
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
