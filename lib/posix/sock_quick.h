#ifndef RCSOCK_LIB_POSIX_SOCK_QUICK_H_
#define RCSOCK_LIB_POSIX_SOCK_QUICK_H_

// The short way of messages up to a record on a lane in shared memory.  It is
// compiled into the hooks: a call and a second set of saved registers would be
// a tenth of it.

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/spin.h"

namespace rcsock::posix {

[[gnu::always_inline]] inline ssize_t Sock::QuickSend(const void* from,
                                                      std::size_t length) {
  Critical critical;
  if (!tx_latch.try_lock()) [[unlikely]]
    return 0;
  std::size_t n = 0;
  if (mode() == Mode::kEngine && lane_is_shm_ && stream_->FastTx()) [[likely]] {
    auto* const lane = static_cast<lane::shm::ShmLane*>(lane_.get());
    n = length - 1 < lane::shm::kInlineMax ? lane->PostQuick(from, length)
                                           : lane->PostRecord(from, length);
    stream_->Posted(n);
    lane_tx_ += n;
  }
  tx_latch.unlock();
  return static_cast<ssize_t>(n);
}

[[gnu::always_inline]] inline ssize_t Sock::QuickRecv(void* to,
                                                      std::size_t length,
                                                      int flags) {
  Critical critical;
  if (!rx_latch.try_lock()) [[unlikely]]
    return 0;
  ssize_t result = 0;
  if (mode() == Mode::kEngine && lane_is_shm_ && stream_->FastRx()) [[likely]] {
    auto* const lane = static_cast<lane::shm::ShmLane*>(lane_.get());
    const bool block = (flags & MSG_DONTWAIT) == 0 &&
                       !nonblock.load(std::memory_order_relaxed);
    if (block && !lane->RxPendingQuick()) {
      // An answer that comes within a microsecond is met here, with nothing
      // left to do but to take it.
      int turns = Spinner::QuickTurns();
      while (turns > 0 && !lane->RxPendingQuick() && !rx_latch.Contended()) {
        --turns;
      }
    }
    const std::size_t n = lane->ReadQuick(to, length);
    stream_->Took(n);
    lane_rx_ += n;
    result = static_cast<ssize_t>(n);
    if (n == 0 && !block && !rd_shut_ && !lane->RxPending()) [[unlikely]] {
      errno = EAGAIN;  // it works, and there is nothing
      result = -1;
    }
  }
  rx_latch.unlock();
  return result;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCK_QUICK_H_
