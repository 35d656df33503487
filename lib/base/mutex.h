#ifndef RCSOCK_LIB_BASE_MUTEX_H_
#define RCSOCK_LIB_BASE_MUTEX_H_

#include <mutex>

#include "lib/base/capability.h"

namespace rcsock::base {

// std::mutex as Clang's analysis knows it: for libraries that stand above the
// public functions and have no base::Latch.
class RC_CAPABILITY("mutex") Mutex {
 public:
  void lock() RC_ACQUIRE() { mutex_.lock(); }
  void unlock() RC_RELEASE() { mutex_.unlock(); }
  bool try_lock() RC_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  // LockForFork belongs to the handler before fork, and UnlockAfterFork to the
  // handler after it. The two are no scope, so the analysis does not see them.
  void LockForFork() { mutex_.lock(); }
  bool TryLockForFork() { return mutex_.try_lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }
  // Tells the analysis that the caller holds the mutex.
  void AssertHeld() const RC_ASSERT_HELD(this) {}

 private:
  std::mutex mutex_;
};

// Holds a mutex for a scope.
class RC_SCOPED_CAPABILITY MutexGuard {
 public:
  explicit MutexGuard(Mutex& mutex) RC_ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexGuard() RC_RELEASE() { mutex_.unlock(); }
  MutexGuard(const MutexGuard&) = delete;
  MutexGuard& operator=(const MutexGuard&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_MUTEX_H_
