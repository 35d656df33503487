#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_SERVE_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_SERVE_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/posix/hooks/uring_requests.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
class Sock;
}

// What uring_held.cc and uring_wait.cc share.
namespace rcsock::posix::uring {

struct Held {
  Request request;
  bool quiet = false;
  bool own_number = false;  // request.fd is rcsock's
  std::uint8_t looks = 0;   // of the helper's while `behind` is set
  // It is behind a link, and the thread (its tls_signals) is submitting it.
  // The kernel has not yet seen the request before it, whose completion comes
  // first.  Null: it goes on.
  const void* behind = nullptr;
  Sock* sock = nullptr;
  std::uint32_t life = 0;
  std::uint64_t data = 0;
  Held* next = nullptr;
};

struct HeldQueue {
  Held* first = nullptr;
  Held** last = &first;
};

// Precedes every latch of a stream or a set (I-LATCH-2).
inline constinit base::Latch held_latch;

// Holds that latch.
class RC_SCOPED_CAPABILITY Guard {
 public:
  Guard() RC_ACQUIRE(held_latch) { held_latch.lock(); }
  ~Guard() RC_RELEASE() { held_latch.unlock(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  const Critical critical_;
};

struct HeldRing {
  static constexpr unsigned kBuckets = 256;

  // -1: free.  Written with held_latch.  A thread that looks without it looks
  // again with it.
  int fd = -1;
  // The epoll set.  Written with held_latch, or by a helper that ends.
  int set = -1;
  std::uint32_t serial RC_GUARDED_BY(held_latch) = 0;
  // In buckets by the stream's number, in order of arrival.
  Held* bucket[kBuckets] RC_GUARDED_BY(held_latch) = {};
  Held** BucketOf(int number) RC_REQUIRES(held_latch) {
    return &bucket[static_cast<unsigned>(number) % kBuckets];
  }
  Held* cancelled RC_GUARDED_BY(held_latch) = nullptr;
  // Written with held_latch.
  std::atomic<bool> any_behind{false};
  std::atomic<int> count{0};
  // The helper thread lives.
  bool helped RC_GUARDED_BY(held_latch) = false;
  std::atomic<bool> gone{false};
  // The thread of the program that waits in the set, or null.
  std::atomic<const void*> server{nullptr};
  // Counts the waits of servers, and the requests.
  std::atomic<std::uint32_t> turns{0};
  // The helper sleeps until this changes.
  std::atomic<std::uint32_t> word{0};
  std::atomic<bool> deep{false};
};

// The event's data for the ring's own descriptor.
constexpr std::uint64_t kRingItself = ~std::uint64_t{0};
constexpr int kMostEvents = 32;

// Completes what has become ready.  Returns how many completions it posted.
int Serve(HeldRing* ring, std::uint32_t serial, const epoll_event* events,
          int count);

// If the stream is ready for a request that may go on, the set reports it once
// more.  Keeps errno.
bool Arm(HeldRing* ring, int fd) RC_REQUIRES(held_latch);
// Has the kernel do the work that it puts off until a thread waits.
void Flush(int ring);
// What this thread has submitted behind a link goes on.
void GoOn(HeldRing* ring) RC_REQUIRES(held_latch);

// While an object of this class lives, a thread of the program waits in a
// ring's set.  Cancellation ends it, too.  If a signal handler jumps out, the
// object stays, and the thread's next wait takes its place.
class Serving {
 public:
  explicit Serving(int fd);
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  // Null: the ring holds nothing, or another thread waits already.
  HeldRing* ring() const { return ring_; }
  int set() const { return set_; }
  std::uint32_t serial() const { return serial_; }

 private:
  HeldRing* ring_ = nullptr;
  int set_ = -1;
  std::uint32_t serial_ = 0;
};

// Wakes the helper thread from its deep sleep.
void WakeHelper(HeldRing* ring);
bool StartHelper(HeldRing* ring) RC_REQUIRES(held_latch);
// Frees a ring that is gone.  Its helper thread calls this at its end.
void FreeRing(HeldRing* ring);

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_SERVE_H_
