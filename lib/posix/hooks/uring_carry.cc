// Which requests of a submission rcsock carries out, and what the kernel sees
// in their place.

#include "lib/posix/hooks/uring_carry.h"

#include <linux/io_uring.h>
#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/posix/hooks/uring_batch.h"
#include "lib/posix/hooks/uring_complete.h"
#include "lib/posix/hooks/uring_held.h"
#include "lib/posix/hooks/uring_requests.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {
namespace {

constexpr unsigned kLinks = IOSQE_IO_LINK | IOSQE_IO_HARDLINK;
constexpr unsigned kInjectResult = 1u << 0;  // IORING_NOP_INJECT_RESULT

// What a replaced request was, in two words that the kernel does not read.
constexpr std::uint64_t kReplaced = 0x7c5f;
struct Was {
  std::uint64_t is : 16;
  std::uint64_t opcode : 8;
  std::uint64_t flags : 8;
  std::uint64_t ioprio : 16;
  std::uint64_t spare : 16;
};
static_assert(sizeof(Was) == 8);
constexpr std::size_t kNumbers = 48;
constexpr std::size_t kLast = 56;

std::uint64_t Word(const io_uring_sqe& request, std::size_t offset) {
  std::uint64_t word;
  std::memcpy(&word, reinterpret_cast<const char*>(&request) + offset,
              sizeof word);
  return word;
}
Was WasOf(const io_uring_sqe& request) {
  Was was;
  const std::uint64_t word = Word(request, kLast);
  std::memcpy(&was, &word, sizeof was);
  return was;
}

template <class T>
void Write(io_uring_sqe* at, std::size_t offset, T value) {
  base::TryStore(reinterpret_cast<T*>(reinterpret_cast<char*>(at) + offset),
                 value);
}
void WriteFirst(io_uring_sqe* at, unsigned opcode, unsigned flags,
                unsigned ioprio) {
  Write(at, 0, static_cast<std::uint32_t>(opcode | flags << 8 | ioprio << 16));
}

bool Cancels(const io_uring_sqe& request) {
  return request.opcode == IORING_OP_ASYNC_CANCEL ||
         request.opcode == IORING_OP_POLL_REMOVE;
}

const Abilities& Able() {
  static constinit std::atomic<bool> known{false};
  static constinit Abilities able;
  if (!known.load(std::memory_order_acquire)) {
    able = KernelAbilities();
    known.store(true, std::memory_order_release);
  }
  return able;
}

// `*at` is done.  The kernel completes it with `result`, or rcsock does.
//
// `chained`: it is before or behind a link, so the kernel completes it in its
// turn, if it can.  The completion then lacks `flags`, which only say that more
// follows.
void Finish(const io_uring_sqe& request, int ring, int result,
            std::uint32_t flags, bool chained, io_uring_sqe* at) {
  if ((chained || flags == 0) && (Able().inject || result == 0)) {
    Replace(request, result, false, at);
    return;
  }
  if ((request.flags & IOSQE_CQE_SKIP_SUCCESS) == 0 || result < 0) {
    const Completion completion{ring, request.user_data, result, flags};
    Complete(&completion, 1);
  }
  Replace(request, 0, true, at);
}

// The thread is about to wait for this request alone.  If bytes come on the
// lane within some microseconds, rcsock posts no completion of its own.
void LookAWhile(const Request& request) {
  constexpr std::uint64_t kLookNs = 20'000;
  constexpr unsigned kSeldom = 32;  // looks behind misses in a row
  static thread_local constinit unsigned misses = 0;
  static thread_local constinit unsigned turn = 0;
  const SockAt sock(request.fd);
  if (Awaits(request) != EPOLLIN || !sock || !sock->OnLane() ||
      (misses > 3 && ++turn % kSeldom != 0)) {
    return;
  }
  const std::uint64_t end = base::NowNs() + kLookNs;
  do {
    bool has;
    {
      const Critical critical;
      has = Looks(sock.get()).HasInput();
    }
    if (has) {
      misses = 0;
      return;
    }
    base::LookOnce();
  } while (base::NowNs() < end);
  ++misses;
}

}  // namespace

bool MayCarry(unsigned flags) {
  constexpr unsigned kDisabled = 1u << 6;  // IORING_SETUP_R_DISABLED
  return base::GetConfig().carry_rings &&
         (flags &
          (kIoPoll | kSqPoll | kDisabled | kNoMmap | kRegisteredFdOnly)) == 0;
}

bool MayBeRemade(const io_uring_sqe& request) {
  return Word(request, kLast) == 0 || WasOf(request).is == kReplaced;
}

void Replace(const io_uring_sqe& request, int result, bool silent,
             io_uring_sqe* at) {
  const Was was{kReplaced, request.opcode, request.flags, request.ioprio, 0};
  std::uint64_t last;
  std::memcpy(&last, &was, sizeof last);
  const std::uint64_t numbers =
      request.len |
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(request.rw_flags))
          << 32;
  Write(at, kNumbers, numbers);
  Write(at, kLast, last);
  const unsigned kept = request.flags & (kLinks | IOSQE_CQE_SKIP_SUCCESS);
  if (silent) {
    Write(at, offsetof(io_uring_sqe, len), std::uint32_t{0});
    Write(at, offsetof(io_uring_sqe, rw_flags), std::uint32_t{0});
    WriteFirst(at, IORING_OP_NOP, kept | IOSQE_CQE_SKIP_SUCCESS, 0);
  } else {
    Write(at, offsetof(io_uring_sqe, len), static_cast<std::uint32_t>(result));
    Write(at, offsetof(io_uring_sqe, rw_flags),
          result != 0 ? kInjectResult : 0u);
    WriteFirst(at, IORING_OP_NOP, kept, 0);
  }
}

bool RestoreReplaced(const io_uring_sqe& request, io_uring_sqe* at) {
  const Was was = WasOf(request);
  if (was.is != kReplaced || request.opcode != IORING_OP_NOP) return false;
  const std::uint64_t numbers = Word(request, kNumbers);
  Write(at, offsetof(io_uring_sqe, len), static_cast<std::uint32_t>(numbers));
  Write(at, offsetof(io_uring_sqe, rw_flags),
        static_cast<std::uint32_t>(numbers >> 32));
  Write(at, kNumbers, std::uint64_t{0});
  Write(at, kLast, std::uint64_t{0});
  WriteFirst(at, was.opcode, was.flags, was.ioprio);
  return true;
}

Batch::Seen Batch::Cancel(const io_uring_sqe& request, io_uring_sqe* at) {
  constexpr unsigned kAll = 1u << 0;  // IORING_ASYNC_CANCEL_*
  constexpr unsigned kFd = 1u << 1;
  constexpr unsigned kAny = 1u << 2;
  constexpr unsigned kUpdates = 3u << 1;  // IORING_POLL_UPDATE_*
  int found = 0;
  int result = 0;
  if (request.opcode == IORING_OP_POLL_REMOVE) {
    if ((request.len & kUpdates) != 0) {
      found = UpdatePoll(carries_, request) ? 1 : 0;
    } else if (request.len == 0) {
      found = CancelHeld(carries_, {.polls_only = true, .data = request.addr});
    }
  } else {
    const auto flags = static_cast<unsigned>(request.cancel_flags);
    if ((flags & ~(kAll | kFd | kAny)) != 0) return Seen::kKernels;
    const bool all = (flags & (kAll | kAny)) != 0;
    found = CancelHeld(carries_, {.any = (flags & kAny) != 0,
                                  .by_fd = (flags & kFd) != 0,
                                  .all = all,
                                  .fd = request.fd,
                                  .data = request.addr});
    result = all ? found : 0;
  }
  if (found == 0) return Seen::kKernels;
  Finish(request, carries_, result, 0, (request.flags & kLinks) != 0, at);
  return Seen::kRemade;
}

Batch::Seen Batch::CarryOut(const io_uring_sqe& request, io_uring_sqe* at) {
  if (carries_ < 0 || restricted_ || drained || drains_ || !chain_done_) {
    return Seen::kKernels;
  }
  constexpr unsigned kFlags = kLinks | IOSQE_CQE_SKIP_SUCCESS | IOSQE_ASYNC;
  Request what;
  const bool cancels = Cancels(request);
  if ((request.flags & ~kFlags) != 0 || request.personality != 0 ||
      !MayBeRemade(request) || (!cancels && !Read(request, &what)) ||
      ProcessPinned() != base::Reason::kNone || !Able().posts) {
    return Seen::kKernels;
  }
  if (chain_failed_) return Seen::kNotBegun;
  const bool linked = (request.flags & kLinks) != 0;
  if (cancels) return Cancel(request, at);
  if ((linked || linked_) && !Able().inject) return Seen::kKernels;
  if (patient && !linked && !Holds(carries_)) LookAWhile(what);
  const bool quiet = (request.flags & IOSQE_CQE_SKIP_SUCCESS) != 0;
  const Verdict verdict =
      Carry(carries_, what, request.user_data, quiet, !linked, linked_);
  switch (verdict.fate) {
    case Fate::kKernels:
      return Seen::kKernels;
    case Fate::kHeld:
      holds_behind |= linked_;
      Replace(request, 0, true, at);
      return Seen::kRemade;
    case Fate::kDone:
      break;
  }
  // A hard link goes on.
  chain_failed_ =
      verdict.result < 0 && (request.flags & IOSQE_IO_HARDLINK) == 0;
  Finish(request, carries_, verdict.result, verdict.flags, linked || linked_,
         at);
  return Seen::kRemade;
}

}  // namespace rcsock::posix::uring
