#include "lib/posix/hooks/uring_held.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

#include "lib/base/sleep.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/uring.h"
#include "lib/posix/hooks/uring_complete.h"
#include "lib/posix/hooks/uring_posts.h"
#include "lib/posix/hooks/uring_serve.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {
namespace {

constexpr int kMostHeld = 8192;
constexpr int kMostHeldRings = 32;  // each has a bell

constinit Held pool[kMostHeld];
constinit Held* free_held RC_GUARDED_BY(held_latch) = nullptr;
constinit int pool_used RC_GUARDED_BY(held_latch) = 0;
constinit HeldRing held_rings[kMostHeldRings];
constinit std::uint32_t last_serial RC_GUARDED_BY(held_latch) = 0;
constinit std::atomic<int> rings_held{0};

Held* Take() RC_REQUIRES(held_latch) {
  if (Held* const held = free_held) {
    free_held = held->next;
    *held = {};
    return held;
  }
  return pool_used < kMostHeld ? &pool[pool_used++] : nullptr;
}
void Give(Held* held) RC_REQUIRES(held_latch) {
  held->next = free_held;
  free_held = held;
}

HeldRing* Find(int fd) RC_REQUIRES(held_latch) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return nullptr;
  for (HeldRing& ring : held_rings) {
    if (ring.fd == fd) return &ring;
  }
  return nullptr;
}

// Gives the ring its set.
bool MakeSet(HeldRing* ring) RC_REQUIRES(held_latch) {
  const int fd = base::OpenHigh(
      [] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); });
  if (fd < 0) return false;
  EpollSet* const set = EpollSet::New(fd);
  if (set == nullptr) {
    base::CloseRaw(fd);
    return false;
  }
  Bind(fd, set);
  ring->set = fd;
  // Edge-triggered, so that a thread that waits for more completions looks at
  // each change once.
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = kRingItself}};
  return ::syscall(SYS_epoll_ctl, fd, EPOLL_CTL_ADD, ring->fd, &event) == 0;
}

// Finds or makes the ring.  Null: rcsock cannot serve the ring.
HeldRing* FindOrMake(int fd) RC_REQUIRES(held_latch) {
  if (HeldRing* const ring = Find(fd)) return ring;
  for (HeldRing& ring : held_rings) {
    if (ring.fd >= 0 || ring.helped) continue;
    ring.fd = fd;
    ring.serial = ++last_serial;
    ring.gone = false;
    ring.deep = false;
    ring.any_behind = false;
    if (!MakeSet(&ring) || !StartHelper(&ring)) {
      ring.fd = -1;
      FreeRing(&ring);
      return nullptr;
    }
    rings_held.fetch_add(1, std::memory_order_relaxed);
    CountRing(&ForgetRings);
    return &ring;
  }
  return nullptr;
}

bool Reads(const Request& request) { return Awaits(request) == EPOLLIN; }

void Unhold(HeldRing* ring, Held** at, Closing* closing)
    RC_REQUIRES(held_latch) {
  Held* const held = *at;
  *at = held->next;
  ring->count.fetch_sub(1, std::memory_order_relaxed);
  if (held->own_number && closing != nullptr) {
    bool last = true;
    for (Held* h = *ring->BucketOf(held->request.fd); h != nullptr;
         h = h->next) {
      last &= h->request.fd != held->request.fd;
    }
    if (last && closing->count < Closing::kMost) {
      closing->fds[closing->count++] = held->request.fd;
    }
  }
}

// Tries all requests of the stream.  A request that has to wait holds up the
// later ones that move bytes in its direction.
void Retry(HeldRing* ring, int fd, Posts* posts, Closing* closing)
    RC_REQUIRES(held_latch) {
  // EPOLLIN and EPOLLOUT.
  std::uint32_t waits = 0;
  std::uint32_t rests = 0;  // ... for a request that does not go on yet
  bool left = false;
  for (Held** at = ring->BucketOf(fd); *at != nullptr;) {
    Held* const held = *at;
    Request& request = held->request;
    if (request.fd != fd) {
      at = &held->next;
      continue;
    }
    const std::uint32_t way = IsPoll(request) ? 0 : Awaits(request);
    if (held->behind != nullptr) {  // GoOn arms the stream
      waits |= way;
      rests |= way;
      at = &held->next;
      continue;
    }
    int result = -EAGAIN;
    std::uint32_t flags = 0;
    if (Lookup(fd) != held->sock || held->sock->calls().Life() != held->life) {
      result = -EBADF;  // closed past rcsock
    } else if ((waits & way) == 0) {
      result = Attempt(&request, &flags);
    }
    if (result == -EAGAIN) {
      waits |= way;
      left |= (rests & way) == 0;
      at = &held->next;
      continue;
    }
    posts->Add(*held, result, flags);
    Unhold(ring, at, closing);
    Give(held);
  }
  if (left) Arm(ring, fd);
}

bool Matches(const Match& match, const Held& held) {
  if (match.polls_only && !IsPoll(held.request)) return false;
  if (match.any) return true;
  if (match.by_fd) return held.request.fd == match.fd;
  return held.data == match.data;
}

// A request that ends a stream, or a direction, never waits.  Such a request
// runs without the latch.  A held request may keep the stream by another
// number.
Verdict End(Request request) {
  const int saved = errno;
  Verdict verdict;
  if (request.opcode == IORING_OP_CLOSE ? Lookup(request.fd) != nullptr
                                        : Carried(request.fd) != nullptr) {
    verdict.fate = Fate::kDone;
    verdict.result = Attempt(&request, &verdict.flags);
  }
  errno = saved;
  return verdict;
}

// Whether a held request moves bytes of this stream in this direction.
bool Behind(HeldRing* ring, const Request& request) RC_REQUIRES(held_latch) {
  if (ring == nullptr || IsPoll(request)) return false;
  for (const Held* h = *ring->BucketOf(request.fd); h != nullptr; h = h->next) {
    if (h->request.fd == request.fd && !IsPoll(h->request) &&
        Reads(h->request) == Reads(request)) {
      return true;
    }
  }
  return false;
}

// Returns whether it is held now.
bool Hold(HeldRing* ring, const Held& what) RC_REQUIRES(held_latch) {
  Held* const held = ring == nullptr ? nullptr : Take();
  if (held == nullptr) return false;
  *held = what;
  Held** at = ring->BucketOf(what.request.fd);
  while (*at != nullptr) at = &(*at)->next;
  *at = held;
  ring->count.fetch_add(1, std::memory_order_relaxed);
  if (Arm(ring, what.request.fd)) {
    if (what.behind != nullptr) ring->any_behind = true;
    ring->turns.fetch_add(1, std::memory_order_relaxed);
    WakeHelper(ring);
    return true;
  }
  *at = nullptr;
  ring->count.fetch_sub(1, std::memory_order_relaxed);
  Give(held);
  return false;
}

}  // namespace

Verdict Carry(int ring_fd, Request request, std::uint64_t data, bool quiet,
              bool may_hold, bool behind) {
  if (request.opcode == IORING_OP_CLOSE ||
      request.opcode == IORING_OP_SHUTDOWN) {
    return End(request);
  }
  const int saved = errno;
  const void* const submitter = behind ? &tls_signals : nullptr;
  Verdict verdict;
  Closing closing;
  Posts posts(ring_fd);
  {
    const Guard guard;
    HeldRing* const ring = Find(ring_fd);
    bool waits = Behind(ring, request);
    Sock* const sock = waits ? LookupSock(request.fd) : Carried(request.fd);
    if (sock != nullptr) {
      // Earlier requests have their turn.
      if (waits) {
        Retry(ring, request.fd, &posts, &closing);
        posts.Post();
        waits = Behind(ring, request);
      }
      verdict.result = waits ? -EAGAIN : Attempt(&request, &verdict.flags);
      if (verdict.result != -EAGAIN || (NeverWaits(request) && !waits)) {
        verdict.fate = Fate::kDone;
      } else if (may_hold && !InHandler() &&
                 Hold(FindOrMake(ring_fd), {.request = request,
                                            .quiet = quiet,
                                            .behind = submitter,
                                            .sock = sock,
                                            .life = sock->calls().Life(),
                                            .data = data})) {
        verdict.fate = Fate::kHeld;
      } else if (request.done > 0) {
        // A part is done, which is the result.
        verdict = {Fate::kDone, static_cast<int>(request.done), 0};
      }
    }
  }
  closing.Close();
  errno = saved;
  return verdict;
}

void Submitted(int ring_fd, unsigned deferred) {
  const int saved = errno;
  // Each call does one link.
  for (; deferred > 0; --deferred) Flush(ring_fd);
  const Guard guard;
  if (HeldRing* const ring = Find(ring_fd)) GoOn(ring);
  errno = saved;
}

int CancelHeld(int ring_fd, const Match& match) {
  int found = 0;
  const Guard guard;
  HeldRing* const ring = Find(ring_fd);
  if (ring == nullptr || ring->count.load() == 0) return 0;
  for (Held*& bucket : ring->bucket) {
    for (Held** at = &bucket; *at != nullptr;) {
      Held* const held = *at;
      if (!Matches(match, *held)) {
        at = &held->next;
        continue;
      }
      Unhold(ring, at, nullptr);
      // What has waited for it alone was not armed.
      if (held->behind != nullptr) Arm(ring, held->request.fd);
      Held** last = &ring->cancelled;
      while (*last != nullptr) last = &(*last)->next;
      held->next = nullptr;
      *last = held;
      ++found;
      if (!match.all) return found;
    }
  }
  return found;
}

void PostCancelled(int ring_fd) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return;
  Closing closing;
  {
    const Guard guard;
    HeldRing* const ring = Find(ring_fd);
    if (ring == nullptr) return;
    Posts posts(ring_fd);
    while (Held* const held = ring->cancelled) {
      ring->cancelled = held->next;
      const bool part = held->request.done > 0;
      posts.Add(*held, part ? static_cast<int>(held->request.done) : -ECANCELED,
                0);
      if (held->own_number && closing.count < 64) {
        bool last = true;
        for (Held* h = *ring->BucketOf(held->request.fd); h != nullptr;
             h = h->next) {
          last &= h->request.fd != held->request.fd;
        }
        for (Held* h = ring->cancelled; h != nullptr; h = h->next) {
          last &= h->request.fd != held->request.fd;
        }
        if (last) closing.fds[closing.count++] = held->request.fd;
      }
      Give(held);
    }
    posts.Post();
  }
  closing.Close();
}

bool UpdatePoll(int ring_fd, const io_uring_sqe& request) {
  constexpr unsigned kEvents = 1u << 1;  // IORING_POLL_UPDATE_EVENTS
  constexpr unsigned kData = 1u << 2;    // IORING_POLL_UPDATE_USER_DATA
  const Guard guard;
  HeldRing* const ring = Find(ring_fd);
  if (ring == nullptr) return false;
  for (Held* bucket : ring->bucket) {
    for (Held* held = bucket; held != nullptr; held = held->next) {
      if (!IsPoll(held->request) || held->data != request.addr) continue;
      if ((request.len & kEvents) != 0) {
        held->request.flags = request.poll32_events;
      }
      if ((request.len & kData) != 0) held->data = request.off;
      Arm(ring, held->request.fd);
      return true;
    }
  }
  return false;
}

bool Holds(int ring_fd) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return false;
  const Guard guard;
  HeldRing* const ring = Find(ring_fd);
  return ring != nullptr &&
         (ring->count.load() > 0 || ring->cancelled != nullptr);
}

int Serve(HeldRing* ring, std::uint32_t serial, const epoll_event* events,
          int count) {
  Closing closing;
  Posts posts(-1);
  {
    const Guard guard;
    if (ring->serial != serial || ring->fd < 0) return 0;
    posts.ring = ring->fd;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 != kRingItself) {
        Retry(ring, static_cast<int>(events[i].data.u64), &posts, &closing);
      }
    }
    posts.Post();
  }
  closing.Close();
  return posts.total;
}

Serving::Serving(int fd) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return;
  const void* const self = &tls_signals;
  const Guard guard;
  HeldRing* const ring = Find(fd);
  if (ring == nullptr || ring->count.load() == 0) return;
  // A handler may have jumped out of a submission of this thread's.
  GoOn(ring);
  const void* other = nullptr;
  if (!ring->server.compare_exchange_strong(other, self) && other != self) {
    return;
  }
  ring->turns.fetch_add(1, std::memory_order_relaxed);
  ring_ = ring;
  set_ = ring->set;
  serial_ = ring->serial;
}

Serving::~Serving() {
  if (ring_ == nullptr) return;
  ring_->turns.fetch_add(1, std::memory_order_relaxed);
  ring_->server.store(nullptr, std::memory_order_seq_cst);
  WakeHelper(ring_);
}

void FreeRing(HeldRing* ring) {
  const int set = ring->set;
  ring->set = -1;
  if (set < 0) return;
  CloseAny(set);
}

void DropHeldRing(int ring_fd) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return;
  Closing closing;
  {
    const Guard guard;
    HeldRing* const ring = Find(ring_fd);
    if (ring == nullptr) return;
    for (Held*& bucket : ring->bucket) {
      while (Held* const held = bucket) {
        Unhold(ring, &bucket, &closing);
        Give(held);
      }
    }
    while (Held* const held = ring->cancelled) {
      ring->cancelled = held->next;
      Give(held);
    }
    ring->fd = -1;
    ring->serial = 0;
    rings_held.fetch_sub(1, std::memory_order_relaxed);
    known_rings.fetch_sub(1, std::memory_order_relaxed);
    ring->gone.store(true, std::memory_order_seq_cst);
    WakeHelper(ring);
  }
  closing.Close();
}

void KeepHeldRing(int ring_fd) {
  const Guard guard;
  if (HeldRing* const ring = Find(ring_fd)) {
    const int copy = base::CopyHighForParent(ring_fd);
    if (copy >= 0) ring->fd = copy;
  }
}

void DropHeldRings(unsigned first, unsigned last) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return;
  for (const HeldRing& ring : held_rings) {
    const int fd = ring.fd;
    if (fd >= 0 && static_cast<unsigned>(fd) >= first &&
        static_cast<unsigned>(fd) <= last) {
      DropHeldRing(fd);
    }
  }
}

namespace {

// Takes all requests on `fd` out of the ring, in their order.
Held* TakeAll(HeldRing* ring, int fd) RC_REQUIRES(held_latch) {
  Held* all = nullptr;
  Held** end = &all;
  for (Held** at = ring->BucketOf(fd); *at != nullptr;) {
    Held* const held = *at;
    if (held->request.fd != fd) {
      at = &held->next;
      continue;
    }
    *at = held->next;
    held->next = nullptr;
    *end = held;
    end = &held->next;
  }
  return all;
}

// Another number of the stream, for rcsock alone; -1: none.
int OwnNumber(int fd) RC_REQUIRES(held_latch) {
  HeldNumber number(fd);
  const int copy = base::CopyHigh(fd);
  if (copy >= 0) CopyHeld(number, copy);
  return copy;
}

void Keep(HeldRing* ring, int fd) RC_REQUIRES(held_latch) {
  Held* const all = TakeAll(ring, fd);
  if (all == nullptr) return;
  const int copy = OwnNumber(fd);
  if (copy < 0) {
    Posts posts(ring->fd);
    for (Held* held = all; held != nullptr;) {
      Held* const next = held->next;
      ring->count.fetch_sub(1, std::memory_order_relaxed);
      posts.Add(*held, -ECANCELED, 0);
      Give(held);
      held = next;
    }
    posts.Post();
    return;
  }
  for (Held* held = all; held != nullptr; held = held->next) {
    held->request.fd = copy;
    held->own_number = true;
  }
  Held** to = ring->BucketOf(copy);
  while (*to != nullptr) to = &(*to)->next;
  *to = all;
  Arm(ring, copy);
}

// A number in [first, last] that a held request has and that the program may
// close; -1: none.
int NumberWithin(const HeldRing& ring, unsigned first, unsigned last)
    RC_REQUIRES(held_latch) {
  for (const Held* bucket : ring.bucket) {
    for (const Held* held = bucket; held != nullptr; held = held->next) {
      const auto fd = static_cast<unsigned>(held->request.fd);
      if (!held->own_number && fd >= first && fd <= last) {
        return held->request.fd;
      }
    }
  }
  return -1;
}

}  // namespace

void KeepHeldStreams(unsigned first, unsigned last) {
  if (rings_held.load(std::memory_order_relaxed) == 0) return;
  const Guard guard;
  for (HeldRing& ring : held_rings) {
    if (ring.fd < 0 || ring.count.load() == 0) continue;
    if (first == last) {
      const auto fd = static_cast<int>(first);
      const Held* const held = *ring.BucketOf(fd);
      if (held != nullptr && !base::IsInternalFd(fd)) Keep(&ring, fd);
      continue;
    }
    for (int fd; (fd = NumberWithin(ring, first, last)) >= 0;) {
      Keep(&ring, fd);
    }
  }
}

int HeldRings() { return rings_held.load(std::memory_order_relaxed); }

void EndHolding() {
  for (const HeldRing& ring : held_rings) {
    const int fd = ring.fd;
    if (fd < 0) continue;
    CancelHeld(fd, {.any = true, .all = true});
    PostCancelled(fd);
    DropHeldRing(fd);
  }
  // A helper looks twenty times a second whether its ring is gone.
  for (int i = 0; i < 200 && HelperThreads() > 0; ++i) {
    base::SleepThrough(1'000'000);
  }
}

void HeldForkLock() { held_latch.LockForFork(); }
void HeldForkUnlock(bool child) { held_latch.UnlockAfterFork(child); }

void HeldForkChild() {
  held_latch.AssertUnshared();
  for (HeldRing& ring : held_rings) {
    if (ring.fd < 0 && !ring.helped) continue;
    Closing closing;
    for (Held*& bucket : ring.bucket) {
      while (Held* const held = bucket) {
        Unhold(&ring, &bucket, &closing);
        Give(held);
      }
    }
    ring.cancelled = nullptr;
    if (ring.fd >= 0) known_rings.fetch_sub(1, std::memory_order_relaxed);
    ring.fd = -1;
    ring.serial = 0;
    ring.helped = false;
    ring.server = nullptr;
    FreeRing(&ring);
    closing.Close();
  }
  rings_held.store(0, std::memory_order_relaxed);
}

}  // namespace rcsock::posix::uring
