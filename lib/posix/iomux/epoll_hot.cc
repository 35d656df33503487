// The hot streams of a large set: they are reported again and again.  Waits
// look at them directly, beside the thousands of streams that have bits.

#include <sys/epoll.h>

#include <cstdint>

#include "lib/base/barrier.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

namespace {

bool Marks(Sock* sock) {
  return (sock->notice().bits() & lane::kNotifyRxBits) != 0;
}

}  // namespace

// The set has outgrown direct looks.  Each direct stream gets its bit instead.
// The caller holds no latch.
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

// Called when the stream has been reported twice within a short time.  Its next
// report may come by a direct look.  Only level-triggered input in shared
// memory qualifies.
void EpollSet::Heat(Interest* interest, Sock* sock) {
  if (rests_) {
    if (wait_number_ - rest_from_ < kRestWaits) return;
    rests_ = false;
  }
  constexpr std::uint32_t kOther = EPOLLOUT | EPOLLWRNORM | EPOLLONESHOT |
                                   static_cast<std::uint32_t>(EPOLLET);
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if ((events & EPOLLIN) == 0 || (events & kOther) != 0 ||
      sock->notice().source() != nullptr) {
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

// Says whether the peer is to mark the stream, beside ringing the bell.  Makes
// no fence behind the wish.  Returns false if another thread has a latch of the
// stream, or if the stream is leaving its lane.
bool EpollSet::SetMarks(const Direct& direct, bool on) {
  Sock* const sock = direct.sock;
  const Interest* const interest = direct.interest;
  if (!sock->tx_latch.try_lock()) return false;
  if (!sock->rx_latch.try_lock()) {
    sock->tx_latch.unlock();
    return false;
  }
  const std::uint32_t bits = sock->notice().bits() & ~lane::kNotifyRxBits;
  interest_latch.lock();
  // A lane with a source was never hot.
  const bool can = sock->lane() == direct.lane && sock->OnLane() &&
                   sock->notice().source() == nullptr &&
                   sock->interests == interest &&
                   interest->next_of_sock == nullptr && interest->set == this &&
                   interest->direct.load(std::memory_order_relaxed) &&
                   bits == (lane::kNotifyRxPoller | lane::kNotifyTxPoller) &&
                   sock->notice().bell() == bell();
  interest_latch.unlock();
  if (can) sock->notice().Wish(on ? bits | lane::kNotifyRxBits : bits);
  sock->rx_latch.unlock();
  sock->tx_latch.unlock();
  return can;
}

// Makes room: streams that are no longer hot leave the direct streams.  If
// direct looks find hardly anything, because many streams share the traffic,
// all leave for a while.
//
// Streams that stay hot need no bits.  A mark costs the peer a locked operation
// on a cache line that moves between the two ends.  So this end asks the peer
// for no marks, as with the streams of a small set.
//
// A stream that is to have bits again is looked at directly until the fence
// behind the wish.  Then it goes on the list.  A sender that has not seen the
// wish has posted before that look.  The wait latch keeps other threads from
// taking the list's entries meanwhile.
void EpollSet::Cool() {
  const bool all = hot_hits_ < kCoolWaits / 4;
  hot_hits_ = 0;
  cooled_ = wait_number_;
  // Streams that were direct while the set was small have left by now.
  Rebuild();
  if (direct_count_ == 0) return;
  const auto cools = [&](const Interest* interest) RC_REQUIRES(wait_latch_) {
    return all || wait_number_ - interest->told > kCoolWaits;
  };
  Sock* wished[kMostDirect];
  int wishes = 0;
  for (int d = 0; d < direct_count_; ++d) {
    const Direct& one = direct_[d];
    const bool cold = cools(one.interest);
    if (Marks(one.sock) == cold ||
        (!cold && wait_number_ - one.interest->told > kHotWaits) ||
        !SetMarks(one, cold)) {
      continue;
    }
    if (cold) wished[wishes++] = one.sock;
  }
  if (wishes > 0) base::HeavyFenceProcesses();
  interest_latch.lock();
  for (int d = direct_used_; d-- > 0;) {
    Interest* interest = direct_members_[d];
    // If another thread has just taken the stream's latches, the stream stays
    // hot a little longer.
    if (cools(interest) && Marks(interest->sock)) {
      Registry::DropDirect(interest);
    }
  }
  interest_latch.unlock();
  // A stream that has got another registration meanwhile found the wish, but no
  // fence.
  for (int i = 0; i < wishes; ++i) Registrations::Ready(wished[i]);
  if (all) {
    rests_ = true;
    rest_from_ = wait_number_;
  }
}

// Whether every wait finds the input of a hot stream, so that it needs no bit.
// The caller holds interest_latch.
bool EpollSet::LooksAt(const Interest* interest, const Sock* sock) const {
  return interest->direct.load(std::memory_order_relaxed) &&
         heats_.load(std::memory_order_relaxed) &&
         (interest->events.load(std::memory_order_relaxed) &
          static_cast<std::uint32_t>(EPOLLET)) == 0 &&
         sock->OnLane();
}

}  // namespace rcsock::posix
