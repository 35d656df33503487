#ifndef RCSOCK_LIB_BASE_HELPER_THREAD_H_
#define RCSOCK_LIB_BASE_HELPER_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>

namespace rcsock::base {

// Starts a thread of rcsock's. No handler runs there, not even before its first
// instruction: signals are the application's. Returns 0 or an errno. The
// program's thread-local memory is taken from the stack, too. `thread` is null
// for a detached thread.
inline int StartThread(pthread_t* thread, void* (*body)(void*), void* argument,
                       std::size_t stack_size) {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return EAGAIN;
  ::pthread_attr_setstacksize(&attributes, stack_size);
  if (thread == nullptr) {
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  }
  // The thread inherits the mask.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t detached;
  const int error = ::pthread_create(thread == nullptr ? &detached : thread,
                                     &attributes, body, argument);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  return error;
}

// Starts a detached thread for calls that may block in the kernel. The stack is
// enough for a call or two.
inline int StartHelper(void* (*body)(void*), void* argument,
                       std::size_t stack_size = 256 << 10) {
  return StartThread(nullptr, body, argument, stack_size);
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_HELPER_THREAD_H_
