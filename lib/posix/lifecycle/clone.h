#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_CLONE_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_CLONE_H_

namespace rcsock::posix {

// Called around a fork that runs no handlers of pthread_atfork.  `child` is
// what the fork has returned.
void BeforeBareFork();
void AfterBareFork(long child);

// `call` is a fork without these handlers, and returns in both processes.
template <class Call>
auto ForkWithoutHandlers(Call&& call) {
  BeforeBareFork();
  const auto child = call();
  AfterBareFork(child);
  return child;
}

// Whether a clone with these flags is a fork.  Other clones with memory of
// their own are not followed: they share descriptors, have other thread
// variables, or have their parent wait.
bool ClonesAsFork(unsigned long flags);

// libc's clone() with such flags.
int CloneAsFork(int (*start)(void*), void* stack, int flags, void* argument,
                void* const (&more)[3]);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_CLONE_H_
