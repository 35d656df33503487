// Rings that the program makes and fills by liburing.

#include <linux/io_uring.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lib/base/guard.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/hooks/uring.h"
#include "lib/posix/hooks/uring_batch.h"
#include "lib/posix/hooks/uring_carry.h"
#include "lib/posix/hooks/uring_held.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"

namespace rcsock::posix::uring {
namespace {

// Restricted rings, by their numbers.  Beyond kMostNumbers, every ring that may
// be restricted counts as restricted.
constexpr unsigned kMostNumbers = 4096;
constinit std::atomic<std::uint64_t> restricted[kMostNumbers / 64] = {};

bool MayBeRestricted(const Ring* ring) {
  constexpr unsigned kDisabled = 1u << 6;  // IORING_SETUP_R_DISABLED
  if ((ring->flags & kDisabled) == 0) return false;
  const auto number = static_cast<unsigned>(ring->fd);
  return number >= kMostNumbers ||
         (restricted[number / 64].load(std::memory_order_relaxed) >>
              (number % 64) &
          1) != 0;
}

void NoteRestricted(int fd, bool is) {
  const auto number = static_cast<unsigned>(fd);
  if (number >= kMostNumbers) return;
  const std::uint64_t bit = std::uint64_t{1} << (number % 64);
  if (is) {
    restricted[number / 64].fetch_or(bit, std::memory_order_relaxed);
  } else {
    restricted[number / 64].fetch_and(~bit, std::memory_order_relaxed);
  }
}

io_uring_sqe* At(const Ring* ring, unsigned position) {
  const unsigned shift = (ring->flags & kSqe128) != 0 ? 1 : 0;
  return &ring->sqes[static_cast<std::size_t>(position & *ring->kring_mask)
                     << shift];
}

// liburing's struct io_uring_cq begins with the pointers to head and tail.
RingView ViewOf(const Ring* ring) {
  return {.fd = ring->fd,
          .cq_head = static_cast<const unsigned*>(ring->cq[0]),
          .cq_tail = static_cast<const unsigned*>(ring->cq[1])};
}

}  // namespace

void BeforeExit(const Ring* ring) {
  if (Null(ring)) return;
  BeforeClose(ring->fd);
  NoteRestricted(ring->fd, false);
}

void BeforeCloseRingFd(const Ring* ring) {
  if (Null(ring) || ring->fd < 0) return;
  KeepHeldRing(ring->fd);
  BeforeClose(ring->fd);
}

void BeforeResizing(const Ring* ring) {
  constexpr unsigned kResizeRings = 33;  // IORING_REGISTER_RESIZE_RINGS
  if (!Null(ring)) BeforeRegister(ring->fd, kResizeRings);
}

void BeforeRestricting(const Ring* ring) {
  if (!Null(ring)) NoteRestricted(ring->fd, true);
}

LibSubmission::LibSubmission(const Ring* ring, bool submits, bool waits) {
  if (Null(ring) || InBorrowedMemory() || ring->sqes == nullptr ||
      ring->sqe_head == ring->sqe_tail) {
    return;
  }
  const int saved = errno;
  head_ = ring->sqe_head;
  tail_ = ring->sqe_tail;
  Batch batch(submits && MayCarry(ring->flags) && ring->fd >= 0 ? ring->fd : -1,
              (ring->flags & kIoPoll) != 0, MayBeRestricted(ring));
  unsigned completed = 0;
  batch.patient =
      waits && tail_ - head_ == 1 &&
      base::TryLoad(static_cast<const unsigned*>(ring->cq[1]), &completed) &&
      completed == *static_cast<const unsigned*>(ring->cq[0]);
  for (unsigned at = head_; at != tail_; ++at) {
    std::uint8_t flags = 0;
    if (base::TrySmall(&flags, &At(ring, at)->flags, sizeof flags)) {
      batch.Foresee(flags);
    }
  }
  for (unsigned at = head_; at != tail_; ++at) {
    io_uring_sqe* const there = At(ring, at);
    io_uring_sqe request;
    if (!base::TrySmall(&request, there, sizeof request)) continue;
    if (batch.See(request, there)) ring_ = ring;
  }
  holds_behind_ = batch.holds_behind;
  deferred_ = (ring->flags & kDeferTaskRun) != 0 ? batch.links : 0;
  errno = saved;
}

void LibSubmission::Taken() {
  if (ring_ == nullptr || std::exchange(taken_, true)) return;
  if (holds_behind_) Submitted(ring_->fd, deferred_);
  PostCancelled(ring_->fd);
}

LibSubmission::~LibSubmission() {
  if (ring_ == nullptr) return;
  const int saved = errno;
  Taken();
  unsigned taken = 0;
  if (base::TryLoad(ring_->khead, &taken)) {
    // The kernel may not have taken all earlier requests.
    const auto count = static_cast<int>(std::min(taken, tail_) - head_);
    for (int i = 0; i < count; ++i) {
      Restore(At(ring_, head_ + static_cast<unsigned>(i)));
    }
  }
  errno = saved;
}

bool CancelsByRegister(int fd, unsigned operation, const void* argument) {
  constexpr unsigned kSyncCancel = 24;  // IORING_REGISTER_SYNC_CANCEL
  constexpr unsigned kAll = 1u << 0;    // IORING_ASYNC_CANCEL_*
  constexpr unsigned kFd = 1u << 1;
  constexpr unsigned kAny = 1u << 2;
  // The start of struct io_uring_sync_cancel_reg.
  struct {
    std::uint64_t data;
    std::int32_t fd;
    std::uint32_t flags;
  } what;
  if (operation != kSyncCancel || !Holds(fd) ||
      !base::TryGet(&what, argument, sizeof what) ||
      (what.flags & ~(kAll | kFd | kAny)) != 0) {
    return false;
  }
  const bool all = (what.flags & (kAll | kAny)) != 0;
  const int found = CancelHeld(fd, {.any = (what.flags & kAny) != 0,
                                    .by_fd = (what.flags & kFd) != 0,
                                    .all = all,
                                    .fd = what.fd,
                                    .data = what.data});
  PostCancelled(fd);
  return found > 0;
}

bool LibHolds(const Ring* ring) { return !Null(ring) && Holds(ring->fd); }

int LibAwait(const Ring* ring, unsigned count, const timespec* timeout,
             const sigset_t* mask) {
  timespec limit;
  if (timeout != nullptr) {
    if (!base::TryGet(&limit, timeout, sizeof limit)) return 0;
    timeout = &limit;
  }
  switch (Await(ViewOf(ring), count, timeout, mask)) {
    case Waited::kInterrupted:
      return -EINTR;
    case Waited::kTimedOut:
      return -ETIME;
    case Waited::kEnough:
      break;
  }
  return 0;
}

}  // namespace rcsock::posix::uring
