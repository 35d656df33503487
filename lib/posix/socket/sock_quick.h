#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_QUICK_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_QUICK_H_

// The short way of messages up to a record on a lane in shared memory.  It is
// compiled into the hooks: a call and a second set of saved registers would be
// a tenth of its cost.

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {

// QuickSend and QuickRecv ask neither for the mode, nor for the Stream, nor
// whether this stream is still on a lane (kLaneMark is a hint).  What the latch
// of one direction guards is enough.  But `still` says, with that latch,
// whether the caller's number is still this stream's.  The calling thread may
// have been off its CPU, and the object be another connection by now
// (fd_table).
//
// may_send and may_receive change with both latches held, and are true only
// while the engine has the stream, and lane_ is there (I-LANE-1):
// - The Stream sets them, while it has a lane, at the end of each function that
//   changes it (Stream::Settle).  Its owner calls these in kEngine alone.
// - The lane is taken away behind Stream::ReleaseLane, which clears them.  Both
//   latches are held from the one to the other (Sock::TakeLane).
// - The lane also goes, with the stream, where the object goes back to the pool
//   (Unref).  So it does in the child of a fork, which has no other thread
//   (AfterFork).
// - Where the mode leaves kEngine they are cleared with it (BackToPlain,
//   EndEngine, Unref, AfterFork), and a new Stream begins without them
//   (TakeFromKernelLatched).
//
// So a thread that finds one of them true under its latch keeps the lane, and
// the flag, until it releases the latch.  It counts what it moves in quick_.
// The Stream adds that to its own counts (tx_off, rx_off) with either or both
// latches held.

[[gnu::always_inline]] inline void PrefetchToWrite(const void* at) {
  __asm__ volatile("prefetchw (%0)" : : "r"(at));
}

template <class Still>
[[gnu::always_inline]] inline ssize_t Sock::QuickSend(Still&& still,
                                                      const void* from,
                                                      std::size_t length) {
  // A peer that spins on the line has the line in its cache.  The line comes
  // from there more slowly than this call gets to its first store.  Asked for
  // here, it comes while the latch is taken.  Asked for when the request is
  // received, it comes too early: the peer takes it back.  Nothing is read
  // where the hint leads, and a prefetch does not fault.
  PrefetchToWrite(next_line.load(std::memory_order_relaxed));
  Critical critical;
  if (!tx_latch.try_lock()) [[unlikely]]
    return 0;
  CheckQuick();
  std::size_t n = 0;
  if (still() && lane_is_shm_ && quick_.may_send) [[likely]] {
    auto* const lane = static_cast<lane::shm::ShmLane*>(lane_.get());
    n = length - 1 < lane::shm::kInlineMax ? lane->PostQuick(from, length)
                                           : lane->PostRecord(from, length);
    quick_.tx += n;
  }
  tx_latch.unlock();
  return static_cast<ssize_t>(n);
}

template <class Still>
[[gnu::always_inline]] inline ssize_t Sock::QuickRecv(Still&& still, void* to,
                                                      std::size_t length,
                                                      int flags) {
  Critical critical;
  if (!rx_latch.try_lock()) [[unlikely]]
    return 0;
  CheckQuick();
  ssize_t result = 0;
  if (still() && lane_is_shm_ && quick_.may_receive) [[likely]] {
    auto* const lane = static_cast<lane::shm::ShmLane*>(lane_.get());
    const bool block = (flags & MSG_DONTWAIT) == 0 &&
                       !nonblock.load(std::memory_order_relaxed);
    if (block && !lane->RxPendingQuick()) {
      // An answer that comes within a microsecond is met here, with nothing
      // left to do but to take it.
      int turns = Spinner::QuickTurns();
      while (turns > 0 && !lane->RxPendingQuick() && !rx_latch.Contended()) {
        --turns;
        base::LookOnce();
      }
    }
    const std::size_t n = lane->ReadQuick(to, length);
    quick_.rx += n;
    result = static_cast<ssize_t>(n);
    if (n == 0 && !block && !rd_shut_ && !lane->RxPending()) [[unlikely]] {
      errno = EAGAIN;  // the lane works, and there is nothing
      result = -1;
    }
  }
  rx_latch.unlock();
  return result;
}

[[gnu::always_inline]] inline bool Looks::HasInput() {
  if (!sock_->rx_latch.try_lock()) [[unlikely]]
    return false;
  const bool has =
      sock_->lane_is_shm_ && sock_->quick_.may_receive && !sock_->rd_shut_ &&
      !sock_->Completions() &&
      static_cast<lane::shm::ShmLane*>(sock_->lane_.get())->DataNext();
  sock_->rx_latch.unlock();
  return has;
}

[[gnu::always_inline]] inline bool Looks::RingTellsAll() {
  if (!sock_->rx_latch.try_lock()) [[unlikely]]
    return false;
  const bool all =
      sock_->lane_is_shm_ && sock_->quick_.may_receive &&
      sock_->quick_.may_send && !sock_->rd_shut_ && !sock_->Completions() &&
      static_cast<lane::shm::ShmLane*>(sock_->lane_.get())->Works();
  sock_->rx_latch.unlock();
  return all;
}

[[gnu::always_inline]] inline int Looks::QuickLook(int number, int events,
                                                   bool drained) {
  constexpr int kInput = POLLIN | POLLRDNORM;
  constexpr int kRoom = POLLOUT | POLLWRNORM;
  // A lane never has these, or they are reported unasked.
  constexpr int kOthers =
      POLLRDBAND | POLLWRBAND | POLLPRI | POLLERR | POLLHUP | POLLNVAL;
  if ((events & ~(kInput | kRoom | POLLRDHUP | kOthers)) != 0 ||
      !sock_->rx_latch.try_lock()) {
    return kNotLooked;
  }
  int found = kNotLooked;
  if (sock_->IsAt(number) && sock_->quick_.may_receive && !sock_->rd_shut_ &&
      !sock_->Completions()) [[likely]] {
    bool works = true;
    bool pending = false;
    if (sock_->lane_is_shm_) {
      pending = static_cast<lane::shm::ShmLane*>(sock_->lane_.get())
                    ->RxPendingIfWorks(&works);
    } else {
      pending = drained && sock_->lane_->RxLanded();
      works =
          drained && (!pending || sock_->lane_->State() == base::Reason::kNone);
    }
    // Readiness tells more of the peer's end than input.
    if (works &&
        !(pending && ((events & POLLRDHUP) != 0 || !sock_->quick_.may_send) &&
          EndNextLatched())) [[likely]] {
      found = pending ? events & kInput : 0;
    }
  }
  sock_->rx_latch.unlock();
  if ((events & kRoom) != 0 && found != kNotLooked) {
    // Readiness() also begins a watch if there is no room.
    if (!HasRoom(number, nullptr)) return kNotLooked;
    found |= events & kRoom;
  }
  return found;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_QUICK_H_
