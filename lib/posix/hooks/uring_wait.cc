// Threads that wait for completions of rings with held requests.

#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/alone.h"
#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/helper_thread.h"
#include "lib/base/latch.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/uring_held.h"
#include "lib/posix/hooks/uring_serve.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {
namespace {

// How many completions the program has not seen yet.
unsigned Ready(const RingView& ring) {
  unsigned head = 0;
  unsigned tail = 0;
  if (!base::TryLoad(ring.cq_tail, &tail)) return ~0u;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!base::TryLoad(ring.cq_head, &head)) return ~0u;
  return tail - head;
}

constinit std::atomic<int> helpers{0};

// Lets those requests behind a link go on for which `goes` returns true.
template <class Goes>
void LetGo(HeldRing* ring, Goes&& goes) RC_REQUIRES(held_latch) {
  if (!ring->any_behind) return;
  bool left = false;
  for (Held* bucket : ring->bucket) {
    for (Held* held = bucket; held != nullptr; held = held->next) {
      if (held->behind == nullptr) continue;
      if (goes(*held)) {
        held->behind = nullptr;
        Arm(ring, held->request.fd);
      } else {
        left = true;
      }
    }
  }
  ring->any_behind = left;
}

// --- The helper

// The length of a nap, while threads of the program wait by themselves.
constexpr int kNapMs = 2;
constexpr std::uint64_t kNapNs = kNapMs * 1'000'000;
// After this many naps without a change the helper sleeps until it is woken.
constexpr int kNaps = 200;
// How long the helper waits before it looks whether the ring is gone.
constexpr int kServeMs = 50;

// A handler may have jumped out of a submission, and the thread may never wait
// through rcsock.  So the helper lets a request go on that it has found behind
// a link so often, a nap or more apart.
constexpr int kMostLooks = 25;

void LetOldGo(HeldRing* ring, std::uint64_t* last) {
  if (!ring->any_behind) return;
  const std::uint64_t now = base::NowNs();
  if (now - *last < kNapNs) return;
  *last = now;
  const Critical critical;
  held_latch.lock();
  LetGo(ring, [](Held& held) { return ++held.looks >= kMostLooks; });
  held_latch.unlock();
}

void SleepHelper(HeldRing* ring, bool deep) {
  const std::uint32_t word = ring->word.load(std::memory_order_seq_cst);
  if (!deep) {
    constexpr timespec kNap{0, kNapNs};
    base::FutexWait(&ring->word, word, &kNap, false);
    return;
  }
  const std::uint32_t turns = ring->turns.load(std::memory_order_relaxed);
  ring->deep.store(true, std::memory_order_seq_cst);
  const bool needed = ring->gone.load(std::memory_order_seq_cst) ||
                      ring->any_behind.load(std::memory_order_seq_cst) ||
                      (ring->count.load(std::memory_order_seq_cst) > 0 &&
                       ring->server.load(std::memory_order_seq_cst) == nullptr);
  if (!needed && turns == ring->turns.load(std::memory_order_seq_cst)) {
    base::FutexWait(&ring->word, word, nullptr, false);
  }
  ring->deep.store(false, std::memory_order_seq_cst);
}

// The helper may have taken the edge of the ring's completions that a waiting
// thread needs.  A thread that comes later becomes the server first, and looks
// at the ring then.
void PassOn(HeldRing* ring, std::uint32_t serial) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ring->server.load(std::memory_order_seq_cst) == nullptr) return;
  const Critical critical;
  held_latch.lock();
  if (ring->serial == serial && ring->fd >= 0) {
    epoll_event event{.events = EPOLLIN | EPOLLET,
                      .data = {.u64 = kRingItself}};
    ::syscall(SYS_epoll_ctl, ring->set, EPOLL_CTL_MOD, ring->fd, &event);
  }
  held_latch.unlock();
}

void* Help(void* argument) {
  ::pthread_setname_np(::pthread_self(), "rcsock-ring");
  auto* const ring = static_cast<HeldRing*>(argument);
  std::uint32_t turns = 0;
  int naps = 0;
  std::uint64_t looked = 0;
  while (!ring->gone.load(std::memory_order_seq_cst)) {
    LetOldGo(ring, &looked);
    const bool behind = ring->any_behind.load(std::memory_order_relaxed);
    const std::uint32_t now = ring->turns.load(std::memory_order_relaxed);
    const bool idle = ring->count.load(std::memory_order_seq_cst) == 0 ||
                      ring->server.load(std::memory_order_seq_cst) != nullptr;
    if (idle || now != turns) {
      naps = now != turns ? 0 : naps + 1;
      turns = now;
      SleepHelper(ring, idle && naps > kNaps && !behind);
      continue;
    }
    int set = -1;
    std::uint32_t serial = 0;
    {
      const Critical critical;
      held_latch.lock();
      set = ring->set;
      serial = ring->serial;
      held_latch.unlock();
    }
    epoll_event events[kMostEvents];
    const int n =
        hook::epoll_wait(set, events, kMostEvents, behind ? kNapMs : kServeMs);
    if (n > 0) {
      const int posted = Serve(ring, serial, events, n);
      const bool itself = std::any_of(events, events + n, [](const auto& it) {
        return it.data.u64 == kRingItself;
      });
      if (posted > 0 || itself) PassOn(ring, serial);
    } else if (n < 0) {
      SleepHelper(ring, false);
    }
  }
  FreeRing(ring);
  helpers.fetch_sub(1);
  {
    const Critical critical;
    held_latch.lock();
    ring->helped = false;
    held_latch.unlock();
  }
  return nullptr;
}

}  // namespace

int HelperThreads() { return helpers.load(std::memory_order_relaxed); }

void WakeHelper(HeldRing* ring) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ring->deep.load(std::memory_order_relaxed) &&
      !ring->gone.load(std::memory_order_relaxed)) {
    return;
  }
  ring->word.fetch_add(1, std::memory_order_seq_cst);
  base::FutexWake(&ring->word, 1, false);
}

bool StartHelper(HeldRing* ring) {
  base::EndLone();
  ring->helped = base::StartHelper(&Help, ring) == 0;
  if (ring->helped) helpers.fetch_add(1);
  return ring->helped;
}

bool Arm(HeldRing* ring, int fd) {
  const int saved = errno;
  std::uint32_t events = EPOLLONESHOT;
  std::uint32_t rests = 0;
  for (const Held* h = *ring->BucketOf(fd); h != nullptr; h = h->next) {
    if (h->request.fd != fd) continue;
    const std::uint32_t awaits = Awaits(h->request);
    const bool poll = IsPoll(h->request);
    if (h->behind != nullptr) {
      if (!poll) rests |= awaits;
    } else if (poll || (rests & awaits) == 0) {
      events |= awaits;
    }
  }
  epoll_event event{.events = events,
                    .data = {.u64 = static_cast<unsigned>(fd)}};
  const bool armed =
      hook::epoll_ctl(ring->set, EPOLL_CTL_MOD, fd, &event) == 0 ||
      (errno == ENOENT &&
       hook::epoll_ctl(ring->set, EPOLL_CTL_ADD, fd, &event) == 0);
  errno = saved;
  return armed;
}

void Flush(int ring) {
  ::syscall(SYS_io_uring_enter, ring, 0, 0, IORING_ENTER_GETEVENTS, nullptr, 0);
}

void GoOn(HeldRing* ring) {
  const void* const self = &tls_signals;
  LetGo(ring, [&](const Held& held) { return held.behind == self; });
}

Waited Await(const RingView& ring, unsigned count, const timespec* timeout,
             const sigset_t* mask) {
  // In a sandbox only the kernel's wait may be allowed.  The helper serves
  // then.
  if (Ready(ring) >= count || ProcessPinned() == base::Reason::kSandboxed) {
    return Waited::kEnough;
  }
  const Serving serving(ring.fd);
  HeldRing* const held = serving.ring();
  if (held == nullptr) return Waited::kEnough;
  // The helper may have taken an edge before it knew this thread.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Ready(ring) >= count) return Waited::kEnough;
  const int saved = errno;
  const std::uint64_t end =
      timeout == nullptr
          ? 0
          : base::NowNs() +
                static_cast<std::uint64_t>(timeout->tv_sec) * 1'000'000'000 +
                static_cast<std::uint64_t>(timeout->tv_nsec);
  Waited waited = Waited::kEnough;
  while (held->count.load(std::memory_order_relaxed) > 0) {
    timespec left{};
    if (timeout != nullptr) {
      const std::uint64_t now = base::NowNs();
      if (now >= end) {
        waited = Waited::kTimedOut;
        break;
      }
      left = {static_cast<time_t>((end - now) / 1'000'000'000),
              static_cast<long>((end - now) % 1'000'000'000)};
    }
    epoll_event events[kMostEvents];
    const int n =
        timeout == nullptr && mask == nullptr
            ? hook::epoll_wait(serving.set(), events, kMostEvents, -1)
            : hook::epoll_pwait2(serving.set(), events, kMostEvents,
                                 timeout == nullptr ? nullptr : &left, mask);
    if (n < 0) {
      waited = errno == EINTR ? Waited::kInterrupted : Waited::kEnough;
      break;
    }
    Serve(held, serving.serial(), events, n);
    if (Ready(ring) >= count) break;
    Flush(ring.fd);
    if (Ready(ring) >= count) break;
  }
  errno = saved;
  return waited;
}

}  // namespace rcsock::posix::uring
