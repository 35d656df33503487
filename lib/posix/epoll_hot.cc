// The hot streams of a large set: those that are reported again and again, and
// so are looked at directly beside the thousands that have their bits.

#include <sys/epoll.h>

#include <cstdint>

#include "lib/posix/epoll.h"
#include "lib/posix/registry.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

// The set has outgrown direct looks: each direct stream gets its bit instead.
// No latch held.
void EpollSet::LeaveDirect() {
  for (;;) {
    Sock* sock = nullptr;
    interest_latch.lock();
    if (direct_used_ > 0 && crowded_.load(std::memory_order_relaxed)) {
      sock = direct_members_[0]->sock;
      sock->Ref();
      Registry::DropDirect(direct_members_[0]);
    } else if (crowded_.load(std::memory_order_relaxed)) {
      heats_.store(true, std::memory_order_relaxed);
    }
    interest_latch.unlock();
    if (sock == nullptr) return;
    InterestsNotify(sock);
    sock->Unref();
  }
}

// It has been reported, and not long before: the next report may come by a
// direct look.  (Level-triggered input alone, in shared memory.)
void EpollSet::Heat(Interest* interest, Sock* sock) {
  if (rests_) {
    if (wait_number_ - rest_from_ < kRestWaits) return;
    rests_ = false;
  }
  constexpr std::uint32_t kOther = EPOLLOUT | EPOLLWRNORM | EPOLLONESHOT |
                                   static_cast<std::uint32_t>(EPOLLET);
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if ((events & EPOLLIN) == 0 || (events & kOther) != 0 ||
      sock->source() != nullptr) {
    return;
  }
  interest_latch.lock();
  if (heats_.load(std::memory_order_relaxed) && interest->set == this &&
      interest->in_user.load(std::memory_order_relaxed) &&
      !interest->direct.load(std::memory_order_relaxed) &&
      sock->interests == interest && interest->next_of_sock == nullptr &&
      direct_used_ < kMostHot) {
    Registry::MakeDirect(interest);
  }
  interest_latch.unlock();
}

// Hot streams that are so no longer make room.  If the looks find hardly
// anything, because the traffic is spread over many, they are given up for a
// while.
void EpollSet::Cool() {
  const bool all = hot_hits_ < kCoolWaits / 4;
  hot_hits_ = 0;
  if (direct_count_ == 0) return;
  interest_latch.lock();
  for (int d = direct_used_; d-- > 0;) {
    Interest* interest = direct_members_[d];
    if (all || wait_number_ - interest->told > kCoolWaits) {
      Registry::DropDirect(interest);
    }
  }
  interest_latch.unlock();
  if (all) {
    rests_ = true;
    rest_from_ = wait_number_;
  }
}

// Input of a hot stream needs no bit: it is found by every wait.  With the
// interest latch.
bool EpollSet::LooksAt(const Interest* interest, const Sock* sock) const {
  return interest->direct.load(std::memory_order_relaxed) &&
         heats_.load(std::memory_order_relaxed) &&
         (interest->events.load(std::memory_order_relaxed) &
          static_cast<std::uint32_t>(EPOLLET)) == 0 &&
         sock->OnLane();
}

}  // namespace rcsock::posix
