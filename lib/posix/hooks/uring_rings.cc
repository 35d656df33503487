// Rings that the program makes by io_uring_setup(2) and fills by itself.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lib/base/backoff.h"
#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/uring.h"
#include "lib/posix/hooks/uring_batch.h"
#include "lib/posix/hooks/uring_carry.h"
#include "lib/posix/hooks/uring_complete.h"
#include "lib/posix/hooks/uring_held.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {

// Identifies the file behind a number.  On Linux 5.12 and later each ring has
// an inode of its own.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const Identity&) const = default;
};

// A ring that is mapped.  rings_latch guards it, except the mapping and its
// measures, which do not change while the ring is known or has users.
struct KnownRing {
  int fd = -1;               // -1: not known, or not any more
  int users = 0;             // threads that read the mapping
  std::uint64_t serial = 0;  // no other ring has it
  Identity identity;
  bool poll = false;        // IORING_SETUP_IOPOLL
  bool defers = false;      // IORING_SETUP_DEFER_TASKRUN
  bool restricted = false;  // IORING_REGISTER_RESTRICTIONS
  bool drained = false;     // a request with IOSQE_IO_DRAIN has been submitted
  bool carries = false;     // rcsock may complete its requests

  // The mapping.  The program may have changed the memory.  So the sizes here
  // are those that the kernel gave.
  void* queue = nullptr;
  std::size_t queue_size = 0;
  void* requests = nullptr;
  std::size_t requests_size = 0;
  unsigned entries = 0;  // a power of two
  unsigned head_at = 0;
  unsigned tail_at = 0;
  unsigned array_at = 0;  // 0: there is none
  unsigned cq_head_at = 0;
  unsigned cq_tail_at = 0;
  unsigned shift = 0;  // 1: requests of twice the size

  // A thread has looked at its submission.  When the head is `end`, the kernel
  // has taken that submission.
  bool busy = false;
  bool looking = false;  // `end` is not known yet
  unsigned turn = 0;
  unsigned end = 0;

  bool Load(unsigned at, unsigned* to) const {
    return base::TryLoad(
        reinterpret_cast<const unsigned*>(static_cast<const char*>(queue) + at),
        to);
  }
  // Null: the kernel drops this position.
  io_uring_sqe* Request(unsigned position) const {
    unsigned index = position & (entries - 1);
    if (array_at != 0 &&
        (!Load(array_at + index * sizeof index, &index) || index >= entries)) {
      return nullptr;
    }
    return static_cast<io_uring_sqe*>(requests) +
           (static_cast<std::size_t>(index) << shift);
  }
};

namespace {

constexpr int kMostRings = 256;
constexpr unsigned kMostEntries = 32768;  // IORING_MAX_ENTRIES
// All flags of liburing 2.8 but those under which rcsock cannot see the queue.
constexpr unsigned kSeenFlags =
    ((1u << 17) - 1) & ~(kSqPoll | kNoMmap | kRegisteredFdOnly);
constexpr unsigned kByPlace = 1u << 4;    // IORING_ENTER_REGISTERED_RING
constexpr unsigned kGetEvents = 1u << 0;  // IORING_ENTER_GETEVENTS

constinit base::Latch rings_latch;
constinit KnownRing rings[kMostRings];
// No ring is known from here on.
constinit int rings_top RC_GUARDED_BY(rings_latch) = 0;
constinit std::uint64_t last_serial RC_GUARDED_BY(rings_latch) = 0;

class RC_SCOPED_CAPABILITY Latched {
 public:
  Latched() RC_ACQUIRE(rings_latch) { rings_latch.lock(); }
  ~Latched() RC_RELEASE() { rings_latch.unlock(); }
  Latched(const Latched&) = delete;
  Latched& operator=(const Latched&) = delete;

 private:
  const Critical critical_;
};

bool Identify(int fd, Identity* to) {
  struct stat what {};
  if (::syscall(SYS_fstat, fd, &what) != 0) return false;
  *to = {what.st_dev, what.st_ino};
  return true;
}

void* Map(int fd, std::size_t size, int protection, std::uint64_t offset) {
  void* const at =
      reinterpret_cast<void*>(::syscall(SYS_mmap, nullptr, size, protection,
                                        MAP_SHARED | MAP_POPULATE, fd, offset));
  if (at == MAP_FAILED) return nullptr;
  ::syscall(SYS_madvise, at, size, MADV_DONTFORK);
  return at;
}

void Unmap(void* at, std::size_t size) {
  if (at != nullptr) ::syscall(SYS_munmap, at, size);
}

void Unmap(const KnownRing& ring) {
  Unmap(ring.queue, ring.queue_size);
  Unmap(ring.requests, ring.requests_size);
}

KnownRing* Find(int fd) RC_REQUIRES(rings_latch) {
  for (int i = 0; i < rings_top; ++i) {
    if (rings[i].fd == fd) return &rings[i];
  }
  return nullptr;
}

// The last user takes the mapping along.
[[nodiscard]] KnownRing TakeIfLast(KnownRing* ring) RC_REQUIRES(rings_latch) {
  if (ring->users != 0 || ring->fd >= 0) return {};
  const KnownRing last = *ring;
  *ring = {};
  return last;
}

[[nodiscard]] KnownRing StopUsing(KnownRing* ring) RC_REQUIRES(rings_latch) {
  --ring->users;
  return TakeIfLast(ring);
}

[[nodiscard]] KnownRing Forget(KnownRing* ring) RC_REQUIRES(rings_latch) {
  ring->fd = -1;
  known_rings.fetch_sub(1, std::memory_order_relaxed);
  return TakeIfLast(ring);
}

// Takes the measures that the kernel reports of a ring.  False: the kernel
// cannot have reported this.
bool Measure(const io_uring_params& kernels, KnownRing* ring) {
  constexpr unsigned kMostOffset = 1 << 20;
  const unsigned entries = kernels.sq_entries;
  const auto& at = kernels.sq_off;
  const bool array = (kernels.flags & kNoSqArray) == 0;
  if (entries == 0 || entries > kMostEntries ||
      (entries & (entries - 1)) != 0 || at.head > kMostOffset ||
      at.tail > kMostOffset || at.array > kMostOffset ||
      kernels.cq_off.head > kMostOffset || kernels.cq_off.tail > kMostOffset ||
      array != (at.array != 0)) {
    return false;
  }
  ring->entries = entries;
  ring->poll = (kernels.flags & kIoPoll) != 0;
  ring->defers = (kernels.flags & kDeferTaskRun) != 0;
  ring->shift = (kernels.flags & kSqe128) != 0 ? 1 : 0;
  ring->head_at = at.head;
  ring->tail_at = at.tail;
  ring->array_at = at.array;
  const bool one_queue = (kernels.features & IORING_FEAT_SINGLE_MMAP) != 0;
  ring->cq_head_at = one_queue ? kernels.cq_off.head : 0;
  ring->cq_tail_at = one_queue ? kernels.cq_off.tail : 0;
  ring->carries = one_queue && MayCarry(kernels.flags);
  ring->queue_size =
      std::max({at.head, at.tail, array ? at.array + (entries - 1) * 4 : 0,
                ring->cq_head_at, ring->cq_tail_at}) +
      sizeof(unsigned);
  ring->requests_size = (sizeof(io_uring_sqe) << ring->shift) * entries;
  return true;
}

}  // namespace

void AfterSetup(int fd, const void* parameters) {
  if (InBorrowedMemory()) return;
  const int saved = errno;
  Evict(fd);
  BeforeClose(fd);  // the number's last owner was closed past rcsock
  io_uring_params kernels;
  KnownRing ring;
  if (ProcessPinned() == base::Reason::kSandboxed) {
    // No stream will be on a lane, and the filter may not know these calls.
  } else if (!base::TryGet(&kernels, parameters, sizeof kernels) ||
             (kernels.flags & ~kSeenFlags) != 0 || !Measure(kernels, &ring)) {
    PinAll();
  } else if (Identify(fd, &ring.identity)) {
    ring.queue = Map(fd, ring.queue_size, PROT_READ, IORING_OFF_SQ_RING);
    ring.requests =
        Map(fd, ring.requests_size, PROT_READ | PROT_WRITE, IORING_OFF_SQES);
    ring.fd = fd;
    bool known = false;
    if (ring.queue != nullptr && ring.requests != nullptr) {
      const Latched held;
      for (int i = 0; i < kMostRings && !known; ++i) {
        if (rings[i].fd >= 0 || rings[i].users != 0) continue;
        ring.serial = ++last_serial;
        rings[i] = ring;
        rings_top = std::max(rings_top, i + 1);
        CountRing(&ForgetRings);
        known = true;
      }
    } else {
      PinAll();
    }
    // A ring that finds no room stays unknown.
    if (!known) Unmap(ring);
  }
  errno = saved;
}

void ForgetRings(unsigned first, unsigned last) {
  if (InBorrowedMemory()) return;
  const int saved = errno;
  DropHeldRings(first, last);
  KeepHeldStreams(first, last);
  for (int i = 0;; ++i) {
    KnownRing gone;
    {
      const Latched held;
      while (i < rings_top &&
             (rings[i].fd < 0 || static_cast<unsigned>(rings[i].fd) < first ||
              static_cast<unsigned>(rings[i].fd) > last)) {
        ++i;
      }
      if (i >= rings_top) break;
      gone = Forget(&rings[i]);
    }
    Unmap(gone);
  }
  errno = saved;
}

void RingsForkChild() {
  rings_latch.Reset();
  rings_latch.AssertUnshared();
  RefusingForkChild();
  CompleteForkChild();
  for (int i = 0; i < rings_top; ++i) rings[i] = {};
  rings_top = 0;
  known_rings.store(HeldRings(), std::memory_order_relaxed);
}

void Restrict(int fd) {
  if (InBorrowedMemory()) return;
  const Latched held;
  for (int i = 0; i < rings_top; ++i) {
    if (fd < 0 || rings[i].fd == fd) {
      rings[i].restricted = true;
      rings[i].carries = false;
    }
  }
}

bool Submission::Holding() const { return Holds(fd_); }

long Submission::Interrupted() {
  errno = EINTR;
  return -1;
}
long Submission::TimedOut() {
  errno = ETIME;
  return -1;
}

int Submission::Wait(unsigned count, const void* argument,
                     std::size_t size) const {
  const timespec* timeout = nullptr;
  const void* mask = argument;
  std::size_t mask_size = size;
  timespec limit;
  if ((flags_ & IORING_ENTER_EXT_ARG) != 0) {
    io_uring_getevents_arg more;
    if (argument == nullptr || size != sizeof more ||
        !base::TryGet(&more, argument, sizeof more)) {
      return 0;  // the kernel refuses it
    }
    mask = reinterpret_cast<const void*>(more.sigmask);
    mask_size = more.sigmask_sz;
    if (more.ts != 0) {
      if (!base::TryGet(&limit, reinterpret_cast<const void*>(more.ts),
                        sizeof limit)) {
        return 0;
      }
      timeout = &limit;
    }
  }
  // With other flags, the time means something else, so the helper thread
  // serves the ring.
  constexpr unsigned kTimes = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
  if ((flags_ & ~kTimes) != 0) return 0;
  sigset_t signals;
  if (mask != nullptr) {
    std::uint64_t kernels;
    if (mask_size != sizeof kernels ||
        !base::TryGet(&kernels, mask, sizeof kernels)) {
      return 0;
    }
    ::sigemptyset(&signals);
    std::memcpy(&signals, &kernels, sizeof kernels);
  }
  RingView view{.fd = fd_};
  KnownRing* ring = nullptr;
  KnownRing gone;
  {
    const Latched held;
    ring = Find(fd_);
    if (ring == nullptr || ring->cq_tail_at == 0) return 0;
    ++ring->users;
    const char* const queue = static_cast<const char*>(ring->queue);
    view.cq_head = reinterpret_cast<const unsigned*>(queue + ring->cq_head_at);
    view.cq_tail = reinterpret_cast<const unsigned*>(queue + ring->cq_tail_at);
  }
  const Waited waited =
      Await(view, count, timeout, mask != nullptr ? &signals : nullptr);
  {
    const Latched held;
    gone = StopUsing(ring);
  }
  Unmap(gone);
  return waited == Waited::kInterrupted ? -EINTR
         : waited == Waited::kTimedOut  ? -ETIME
                                        : 0;
}

Submission::Submission(int fd, unsigned count, unsigned flags)
    : count_(count), flags_(flags), fd_(fd) {
  if (count == 0 || ProcessPinned() == base::Reason::kSandboxed ||
      InBorrowedMemory()) {
    return;
  }
  const int saved = errno;
  if (!TakeTurn()) {
    PinAll();
    errno = saved;
    return;
  }
  unsigned tail = head_;
  ring_->Load(ring_->tail_at, &tail);
  count_ = std::min({count, tail - head_, ring_->entries});
  // If the ring has fewer requests than the call names, the kernel does not
  // wait for completions.
  if (count_ < count) flags_ &= ~kGetEvents;
  EndLook(LookAtRequests());
  errno = saved;
}

// Makes `ring_` the ring that fd_ names, and keeps other threads from looking
// at the ring.  If another thread is submitting to the ring, this thread waits,
// but not for long: this thread may run a handler that has interrupted the
// other submission.  Returns false if fd_ names no such ring, or if the turn
// does not come.
bool Submission::TakeTurn() {
  constexpr int kTurns = 16;
  base::Backoff backoff;
  Identity identity;
  bool known = (flags_ & kByPlace) == 0 && Identify(fd_, &identity);
  for (int i = 0; known && ring_ == nullptr && i < kTurns; ++i) {
    if (i > 0) backoff.Wait();
    KnownRing gone;
    {
      const Latched held;
      KnownRing* const ring = Find(fd_);
      unsigned head = 0;
      if (ring == nullptr) {
        known = false;
      } else if (ring->identity != identity) {
        gone = Forget(ring);  // closed past rcsock
        known = false;
      } else if (!ring->Load(ring->head_at, &head)) {
        known = false;
      } else if (!ring->busy || (!ring->looking && ring->end == head)) {
        ring->busy = true;
        ring->looking = true;
        ++ring->users;
        turn_ = ++ring->turn;
        head_ = head;
        serial_ = ring->serial;
        ring_ = ring;
      } else if (i == kTurns - 1) {
        gone = Forget(ring);
      }
    }
    Unmap(gone);
  }
  return ring_ != nullptr;
}

// Acts on each request that the call submits.  Returns whether the ring is
// drained from now on.
bool Submission::LookAtRequests() {
  Batch batch(ring_->carries ? fd_ : -1, ring_->poll, ring_->restricted);
  batch.drained = ring_->drained;
  for (unsigned i = 0; i < count_; ++i) {
    std::uint8_t of = 0;
    const io_uring_sqe* const at = ring_->Request(head_ + i);
    if (at != nullptr && base::TrySmall(&of, &at->flags, sizeof of)) {
      batch.Foresee(of);
    }
  }
  for (unsigned i = 0; i < count_; ++i) {
    io_uring_sqe* const at = ring_->Request(head_ + i);
    io_uring_sqe request;
    if (at == nullptr || !base::TrySmall(&request, at, sizeof request))
      continue;
    remade_ |= batch.See(request, at);
  }
  holds_behind_ = batch.holds_behind;
  deferred_ = ring_->defers ? batch.links : 0;
  return batch.drained;
}

// A handler may jump out of the kernel's wait.  So the thread holds no latch
// and no turn there.
void Submission::EndLook(bool drained) {
  KnownRing gone;
  {
    const Latched held;
    if (ring_->serial != serial_) {
      ring_ = nullptr;  // a handler has forked, and this is the child
    } else {
      ring_->looking = false;
      ring_->end = head_ + count_;
      ring_->drained = drained;
      gone = StopUsing(ring_);
    }
  }
  if (ring_ == nullptr) PinAll();
  Unmap(gone);
}

void Submission::Taken() {
  if (std::exchange(taken_, true)) return;
  if (holds_behind_) Submitted(fd_, deferred_);
  PostCancelled(fd_);
}

Submission::~Submission() {
  Taken();
  if (ring_ == nullptr) return;
  const int saved = errno;
  bool mine;
  {
    const Latched held;
    // Not if the ring was closed meanwhile.
    mine = ring_->serial == serial_ && ring_->fd >= 0 && ring_->turn == turn_;
    if (mine) {
      // No other thread has looked at a request since this thread's turn, and
      // `looking` keeps the others away until this thread has finished.
      ring_->looking = true;
      ++ring_->users;
    }
  }
  if (mine) {
    unsigned head = head_;
    if (remade_) ring_->Load(ring_->head_at, &head);
    const unsigned taken = std::min(head - head_, count_);
    for (unsigned i = 0; i < taken; ++i) {
      if (io_uring_sqe* const at = ring_->Request(head_ + i)) Restore(at);
    }
    KnownRing gone;
    {
      const Latched held;
      if (ring_->serial == serial_) {
        ring_->busy = false;
        gone = StopUsing(ring_);
      }
    }
    Unmap(gone);
  }
  errno = saved;
}

}  // namespace rcsock::posix::uring
