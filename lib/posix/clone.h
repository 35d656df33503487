#ifndef RCSOCK_LIB_POSIX_CLONE_H_
#define RCSOCK_LIB_POSIX_CLONE_H_

namespace rcsock::posix {

// Around a fork that runs no handlers of pthread_atfork; `child` is what it has
// returned.
void BeforeBareFork();
void AfterBareFork(long child);

// `call` is such a fork, and returns in both processes.
template <class Call>
auto ForkWithoutHandlers(Call&& call) {
  BeforeBareFork();
  const auto child = call();
  AfterBareFork(child);
  return child;
}

// Whether a clone with these flags is a fork.  Others with memory of their own
// (that share descriptors, have other thread variables, or whose parent waits)
// are beyond what is followed.
bool ClonesAsFork(unsigned long flags);

// libc's clone(), of such flags.
int CloneAsFork(int (*start)(void*), void* stack, int flags, void* argument,
                void* const (&more)[3]);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_CLONE_H_
