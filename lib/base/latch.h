#ifndef RCSOCK_LIB_BASE_LATCH_H_
#define RCSOCK_LIB_BASE_LATCH_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/barrier.h"
#include "lib/base/capability.h"
#include "lib/base/dcheck.h"
#include "lib/base/held_latches.h"

namespace rcsock::base {

inline void CpuRelax() { __builtin_ia32_pause(); }

// The pause between the looks of a short spin at a line that another CPU is
// about to write. The next look begins only after the last has its answer. Many
// looks under way at once would take the line from its writer between two
// stores. CpuRelax would do, but takes 140 cycles on some processors.
inline void LookOnce() { __builtin_ia32_lfence(); }

// Sleeps while `*word == expected`; `timeout` (relative) may be null. Returns 0
// or -errno (EAGAIN, EINTR, ETIMEDOUT). A raw system call: the preload must not
// see it. `shared` for words in memory that another process maps.
inline int FutexWait(const void* word, std::uint32_t expected,
                     const timespec* timeout, bool shared) {
  long r =
      ::syscall(SYS_futex, word, FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG),
                expected, timeout, nullptr, 0);
  return r == 0 ? 0 : -errno;
}

inline void FutexWake(const void* word, int count, bool shared) {
  int saved = errno;
  ::syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG),
            count, nullptr, nullptr, 0);
  errno = saved;
}

// A mutex that locks by one atomic operation when uncontended, and unlocks by a
// plain store. Its holder can see that a thread waits (`Contended`). So a
// thread may spin for data with the latch held, and give way when asked. Not
// recursive. Works in any thread; never in a signal handler that may have
// interrupted the holder.
//
// No lost wake-up: a waiter counts itself, fences, and looks at the word; the
// holder clears the word, fences, and looks at the count. The waiter's fence is
// the heavy one, so program order is enough for the holder. If the kernel has
// no heavy fence, the holder's is a full one. A filter of system calls may
// refuse the barrier later, while a holder still relies on it. From then on
// waiters look again by themselves.
class RC_CAPABILITY("latch") Latch {
 public:
  constexpr Latch() = default;
#if RC_DCHECK_IS_ON
  constexpr explicit Latch(LatchRank rank) : rank_(rank) {}
#else
  constexpr explicit Latch(LatchRank) {}
#endif
  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;

  void lock() RC_ACQUIRE() {
    CheckOrder();
    std::uint32_t free = 0;
    if (!word_.compare_exchange_strong(free, 1, std::memory_order_acquire)) {
      LockSlow();
    }
    NoteLocked();
  }
  bool try_lock() RC_TRY_ACQUIRE(true) {
    std::uint32_t free = 0;
    const bool locked =
        word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
    if (locked) NoteLocked();
    return locked;
  }
  void unlock() RC_RELEASE() {
    NoteUnlocked();
    if (__builtin_expect(barriers.threads.load(std::memory_order_relaxed), 1)) {
      word_.store(0, std::memory_order_release);
      LightFence();
    } else {
      word_.exchange(0, std::memory_order_seq_cst);
    }
    if (__builtin_expect(waiters_.load(std::memory_order_relaxed) != 0, 0)) {
      FutexWake(&word_, 1, false);
    }
  }
  // LockForFork belongs to the handler before fork, and UnlockAfterFork to the
  // handler after it. The two are no scope, so the analysis does not see them.
  void LockForFork() RC_NO_LOCK_CHECK { lock(); }
  void UnlockAfterFork(bool child) RC_NO_LOCK_CHECK {
    child ? Reset() : unlock();
  }
  // Tells the analysis that the caller holds the latch, and checks it.
  void AssertHeld() const RC_ASSERT_HELD(this) {
#if RC_DCHECK_IS_ON
    RC_DCHECK(owner_.load(std::memory_order_relaxed) == &tls_held_latches);
#endif
  }
  // Tells the analysis that the latch is not needed: no other thread knows the
  // object that it guards. The object is being made, or this is a child of
  // fork.
  void AssertUnshared() const RC_ASSERT_HELD(this) {}
  bool Contended() const {
    return waiters_.load(std::memory_order_relaxed) != 0;
  }
  // Returns true if a thread holds the latch. If it returns false, the caller
  // sees all that the last holder has done.
  bool Held() const { return word_.load(std::memory_order_acquire) != 0; }
  // For a spinning holder that saw Contended(): lets the waiter run first.
  void Yield() RC_REQUIRES(this) {
    unlock();
    timespec brief{0, 20'000};
    // A raw call: nanosleep() would be a cancellation point.
    ::syscall(SYS_nanosleep, &brief, nullptr);
    lock();
  }
  // In the child of fork, where no other thread is left to unlock it.
  void Reset() {
#if RC_DCHECK_IS_ON
    if (owner_.load(std::memory_order_relaxed) == &tls_held_latches) {
      NoteUnlocked();
    }
    owner_.store(nullptr, std::memory_order_relaxed);
#endif
    word_.store(0, std::memory_order_relaxed);
    waiters_.store(0, std::memory_order_relaxed);
  }

  [[gnu::noinline]] void LockSlow() {
    for (int i = 0; i < 100; ++i) {
      std::uint32_t free = 0;
      if (word_.load(std::memory_order_relaxed) == 0 &&
          word_.compare_exchange_weak(free, 1, std::memory_order_acquire)) {
        return;
      }
      CpuRelax();
    }
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    HeavyFenceThreads();
    std::uint32_t free = 0;
    while (!word_.compare_exchange_strong(free, 1, std::memory_order_acquire)) {
      free = 0;
      // The kernel compares: no sleep if the word has been cleared meanwhile.
      const timespec bound{0, 10'000'000};
      FutexWait(
          &word_, 1,
          barriers.threads.load(std::memory_order_relaxed) ? nullptr : &bound,
          false);
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }

  // A thread takes latches in the order of their ranks. A thread that only
  // tries a latch does not wait, and may go against the order.
  void CheckOrder() const {
#if RC_DCHECK_IS_ON
    RC_DCHECK(owner_.load(std::memory_order_relaxed) != &tls_held_latches ||
              !KnowsHeldLatches());
    RC_DCHECK(rank_ == LatchRank::kNone || !KnowsHeldLatches() ||
              tls_held_latches.None(rank_));
#endif
  }
  void NoteLocked() {
#if RC_DCHECK_IS_ON
    owner_.store(&tls_held_latches, std::memory_order_relaxed);
    ++tls_held_latches.of[static_cast<int>(rank_)];
#endif
  }
  void NoteUnlocked() {
#if RC_DCHECK_IS_ON
    RC_DCHECK(owner_.load(std::memory_order_relaxed) == &tls_held_latches ||
              !KnowsHeldLatches());
    owner_.store(nullptr, std::memory_order_relaxed);
    --tls_held_latches.of[static_cast<int>(rank_)];
#endif
  }

#if RC_DCHECK_IS_ON
  const LatchRank rank_ = LatchRank::kNone;
  std::atomic<const HeldLatches*> owner_{nullptr};
#endif
  std::atomic<std::uint32_t> word_{0};     // 0 free, 1 held
  std::atomic<std::uint32_t> waiters_{0};  // threads in LockSlow
};

// Holds a latch for a scope. The guards of the standard library tell Clang's
// analysis nothing.
template <class Which = Latch>
class RC_SCOPED_CAPABILITY LatchGuard {
 public:
  explicit LatchGuard(Which& latch) RC_ACQUIRE(latch) : latch_(latch) {
    latch_.lock();
  }
  ~LatchGuard() RC_RELEASE() { latch_.unlock(); }
  LatchGuard(const LatchGuard&) = delete;
  LatchGuard& operator=(const LatchGuard&) = delete;

 private:
  Which& latch_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LATCH_H_
