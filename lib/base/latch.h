#ifndef RCSOCK_LIB_BASE_LATCH_H_
#define RCSOCK_LIB_BASE_LATCH_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace rcsock::base {

inline void CpuRelax() { __builtin_ia32_pause(); }

// Sleeps while `*word == expected`; `timeout` (relative) may be null.  Returns 0
// or -errno (EAGAIN, EINTR, ETIMEDOUT).  A raw system call: the preload must not
// see it.  `shared` for words in memory that another process maps.
inline int FutexWait(const void* word, std::uint32_t expected,
                     const timespec* timeout, bool shared) {
  long r = ::syscall(SYS_futex, word,
                     FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG), expected,
                     timeout, nullptr, 0);
  return r == 0 ? 0 : -errno;
}

inline void FutexWake(const void* word, int count, bool shared) {
  int saved = errno;
  ::syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG),
            count, nullptr, nullptr, 0);
  errno = saved;
}

// A mutex of one atomic when uncontended.  Its holder can see that somebody
// waits (`Contended`), so that a thread may spin for data with the latch held
// and give way when asked.  Not recursive.  Works in any thread; never in a
// signal handler that may have interrupted the holder.
class Latch {
 public:
  void lock() {
    std::uint32_t free = 0;
    if (!word_.compare_exchange_strong(free, 1, std::memory_order_acquire)) {
      LockSlow();
    }
  }
  bool try_lock() {
    std::uint32_t free = 0;
    return word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  void unlock() {
    if (word_.exchange(0, std::memory_order_release) == 2) {
      FutexWake(&word_, 1, false);
    }
  }
  bool Contended() const {
    return word_.load(std::memory_order_relaxed) == 2;
  }
  // For a spinning holder that saw Contended(): lets the waiter run first.
  void Yield() {
    unlock();
    timespec brief{0, 20'000};
    ::nanosleep(&brief, nullptr);
    lock();
  }
  // In the child of fork, where no other thread is left to unlock it.
  void Reset() { word_.store(0, std::memory_order_relaxed); }

 private:
  void LockSlow() {
    for (int i = 0; i < 100; ++i) {
      std::uint32_t free = 0;
      if (word_.load(std::memory_order_relaxed) == 0 &&
          word_.compare_exchange_weak(free, 1, std::memory_order_acquire)) {
        return;
      }
      CpuRelax();
    }
    while (word_.exchange(2, std::memory_order_acquire) != 0) {
      FutexWait(&word_, 2, nullptr, false);
    }
  }

  std::atomic<std::uint32_t> word_{0};  // 0 free, 1 held, 2 held and awaited
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LATCH_H_
