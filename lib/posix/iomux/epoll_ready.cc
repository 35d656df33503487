// The ready list of a set, and how registrations come onto it: by the bits of
// the poller, and by the sources.

#include <sys/epoll.h>

#include <cstdint>
#include <memory>

#include "lib/base/guard.h"
#include "lib/base/real.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_quick.h"

namespace rcsock::posix {

// Puts it before all others.
int EpollSet::EnlistFirst(Interest* interest) {
  if (interest->ready.load(std::memory_order_relaxed)) return 0;
  interest->ready.store(true, std::memory_order_relaxed);
  interest->ready_prev = nullptr;
  interest->ready_next = ready_head_;
  (ready_head_ != nullptr ? ready_head_->ready_prev : ready_tail_) = interest;
  ready_head_ = interest;
  return 1;
}

void EpollSet::AddLink(const std::shared_ptr<lane::shm::Link>& link) {
  poller_->AddLink(link);
}

void EpollSet::AddSource(lane::Source* source) {
  const int count = source_count_.load(std::memory_order_relaxed);
  int at = count;
  for (int i = 0; i < count; ++i) {
    lane::Source* one = sources_[i].load(std::memory_order_relaxed);
    if (one == source) return;
    if (one->fd() < 0) at = i;  // its device has gone
  }
  if (at == kMostSources) return;  // further devices report by the bell
  if (mirror_.fd.load(std::memory_order_relaxed) >= 0) {
    if (auto* const conductor = rendezvous::Conductor::IfRunning()) {
      conductor->SourceWanted(source, 1);
    }
  } else {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.ptr = this;
    real::epoll_ctl(fd_, EPOLL_CTL_ADD, source->fd(), &event);
  }
  sources_[at].store(source, std::memory_order_seq_cst);
  if (at == count) source_count_.store(count + 1, std::memory_order_seq_cst);
  // A thread that sleeps has not armed it.
  Registry::KickSleepers(this);
}

void EpollSet::DrainSources() {
  const int count = source_count_.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) source(i)->Drain();
}

void EpollSet::KickBell() {
  if (poller_) poller_->Kick();
}

int EpollSet::DrainPoller(Fresh* fresh) {
  lane::Completion found[64];
  int all = 0;
  DrainSources();
  for (int round = 0; round < 4; ++round) {
    int n = poller_->Poll(found, 64);
    if (n < 64) n += board_->Poll(poller_->bell(), found + n, 64 - n);
    if (n <= 0) return all;
    interest_latch.lock();
    ready_latch_.lock();
    int listed = 0;
    for (int c = 0; c < n; ++c) {
      auto* sock = static_cast<Sock*>(found[c].cookie);
      for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
        if (!i->in_user.load(std::memory_order_relaxed)) continue;
        if (i->dormant.load(std::memory_order_relaxed)) continue;
        if (found[c].flags == lane::kCompletionRx && i->set == this &&
            LooksAt(i, sock)) {
          continue;
        }
        if (found[c].flags == lane::kCompletionTx &&
            Registry::NoEdgeOfRoom(i)) {
          continue;
        }
        i->edge.store(true, std::memory_order_relaxed);
        if (i->set == this) {
          const int one = Enlist(i);
          listed += one;
          if (fresh != nullptr && one != 0 && fresh->count < Fresh::kMost &&
              found[c].flags == lane::kCompletionRx) {
            fresh->interests[fresh->count++] = i;
          }
        } else {
          ready_count_.fetch_add(listed, std::memory_order_seq_cst);
          all += listed;
          listed = 0;
          ready_latch_.unlock();
          Registry::MakeReady(i);
          Registry::KickSleepers(i->set);
          ready_latch_.lock();
        }
      }
    }
    ready_count_.fetch_add(listed, std::memory_order_seq_cst);
    ready_latch_.unlock();
    interest_latch.unlock();
    all += listed;
    if (n < 64) return all;
  }
  // The registrations beyond `all` have been put back.  A thread that looked
  // meanwhile, for another set with this bell, did not see them.
  KickBell();
  return all;
}

// Takes the one report of a ONESHOT registration for this thread.  `armings`
// was read before the look that has found something.  `data` gets the data that
// the registration was armed with.  Returns false in four cases: ToldByLane
// came first, the registration is now another stream's, the kernel has it again
// and reports it, or it has been armed since: the arming thread may have read
// what the look has found.  A new arming is on the list, or the next look finds
// it.  If the registration is armed anew after this call, a later report has
// the new arming.
bool EpollSet::Spend(Interest* interest, const Sock* sock,
                     std::uint32_t armings, std::uint64_t* data) {
  interest_latch.lock();
  const bool mine =
      interest->set == this && interest->sock == sock &&
      interest->in_user.load(std::memory_order_relaxed) &&
      interest->armings.load(std::memory_order_relaxed) == armings &&
      !interest->spent.exchange(true, std::memory_order_relaxed);
  *data = interest->data.load(std::memory_order_relaxed);
  interest_latch.unlock();
  return mine;
}

// Notes that this wait reports the registration.  Many reports in a row make it
// hot.  Two close reports do not: among thousands of active streams some are
// always close by chance.
inline void EpollSet::Report(Interest* interest, Sock* sock) {
  const std::uint32_t ago = wait_number_ - interest->told;
  interest->told = wait_number_;
  if (ago > kHotWaits) {
    interest->warm = 1;
  } else if (interest->warm < kHotReports) {
    ++interest->warm;
  }
  if (interest->warm == kHotReports && heats_.load(std::memory_order_relaxed) &&
      !interest->direct.load(std::memory_order_relaxed)) {
    Heat(interest, sock);
  }
}

// Registrations that a wait has taken off the ready list.
struct EpollSet::Batch {
  static constexpr int kMost = 64;
  Interest* interests[kMost];
  int count = 0;
  int kept = 0;  // how many are put back; they are at the front

  void Keep(Interest* interest) { interests[kept++] = interest; }
};

// What has become of a registration that was on the list.
enum class EpollSet::Listed {
  kNothing,  // it has nothing to report
  kKept,     // it stays on the list, and is not reported
  kTold,     // it is reported, and leaves the list
  kToldAndKept,
  kArmedAnew,  // the look is to be made again
  kUntold,     // the program's array is not accessible
};

[[gnu::always_inline]] inline void EpollSet::TakeListed(Batch* batch,
                                                        int most) {
  int n = 0;
  ready_latch_.lock();
  while (n < Batch::kMost && n < most && ready_head_ != nullptr) {
    batch->interests[n] = ready_head_;
    Delist(ready_head_);
    ++n;
  }
  ListShrinks(n);
  ready_latch_.unlock();
  batch->count = n;
}

// Takes the registration's edge for this wait.  False: there is none.
[[gnu::always_inline]] inline bool EpollSet::TakeEdge(Interest* interest,
                                                      Sock* sock) {
  // Taking the peer's end makes an edge, so TakeEnd comes before the edge is
  // taken.
  Looks(sock).TakeEnd();
  if (!interest->edge.exchange(false, std::memory_order_relaxed)) return false;
  if (interest->sock == sock) [[likely]]
    return true;
  ListAnew(interest);
  return false;
}

// Called when the registration has been closed, and made for another stream.
// The edge was the old stream's.
void EpollSet::ListAnew(Interest* interest) {
  interest_latch.lock();
  if (interest->set != nullptr &&
      interest->in_user.load(std::memory_order_relaxed)) {
    Registry::MakeReady(interest);
    Registry::KickSleepers(interest->set);
  }
  interest_latch.unlock();
}

namespace {

// Returns whether a stream that has just been reported stays on the list.
// `holds`: the events that the stream has.
[[gnu::always_inline]] inline bool StaysListed(const Interest* interest,
                                               const Sock* sock,
                                               std::uint32_t events,
                                               std::uint32_t holds) {
  if ((events & (EPOLLET | EPOLLONESHOT)) != 0) return false;
  // If a direct stream only has something to read in its ring, every wait looks
  // at it.  That look does not see the stash, the end, or this end's SHUT_RD.
  const bool found_anyway =
      interest->direct.load(std::memory_order_acquire) && sock->OnLane() &&
      (events & (EPOLLOUT | EPOLLWRNORM)) == 0 &&
      (holds & ~std::uint32_t{EPOLLRDNORM}) == (EPOLLIN | Looks::kInRing);
  return !found_anyway;
}

}  // namespace

// Looks at a registration that was on the list, and reports it if it is ready.
[[gnu::always_inline]] inline EpollSet::Listed EpollSet::TellListed(
    Interest* interest, epoll_event* out) {
  Sock* const sock = interest->sock;
  std::uint64_t data = interest->data.load(std::memory_order_acquire);
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if (interest->set != this || sock == nullptr ||
      !interest->in_user.load(std::memory_order_relaxed) ||
      interest->dormant.load(std::memory_order_acquire) ||
      interest->spent.load(std::memory_order_relaxed)) {
    return Listed::kNothing;
  }
  // This wait has reported the registration already, and reports no descriptor
  // twice.  The registration stays listed.
  if (interest->told == wait_number_) return Listed::kKept;
  const std::uint32_t armings =
      (events & EPOLLONESHOT) != 0
          ? interest->armings.load(std::memory_order_acquire)
          : 0;
  if ((events & EPOLLET) && !TakeEdge(interest, sock)) return Listed::kNothing;
  // For all that a socket can be, EPOLL* and POLL* have equal values.
  bool plain = false;
  const std::uint32_t holds = Looks(sock).Readiness(
      -1, (events & 0xffff) | EPOLLERR | EPOLLHUP | EPOLLRDHUP | Looks::kInRing,
      &plain);
  const std::uint32_t ready = holds & ((events & 0xffff) | EPOLLERR | EPOLLHUP);
  // The registration has been armed anew meanwhile.  The edge that was taken
  // may belong to the new arming.
  if (!interest->Is(events, data)) [[unlikely]] {
    interest->edge.store(true, std::memory_order_relaxed);
    return Listed::kArmedAnew;
  }
  if (ready == 0) return Listed::kNothing;
  if ((events & EPOLLONESHOT) != 0 && !Spend(interest, sock, armings, &data)) {
    // It may have been armed anew with the same events and data.  The edge that
    // was taken may belong to that arming.
    interest->edge.store(true, std::memory_order_relaxed);
    return Listed::kArmedAnew;
  }
  if (!base::TryTell(out, ready, data)) [[unlikely]]
    return Listed::kUntold;
  // Report marks the registration for this wait.  The list may have become
  // shorter meanwhile, and a registration that is put back would come again.
  Report(interest, sock);
  return StaysListed(interest, sock, events, holds) ? Listed::kToldAndKept
                                                    : Listed::kTold;
}

[[gnu::always_inline]] inline void EpollSet::PutBack(const Batch& batch) {
  int listed = 0;
  ready_latch_.lock();
  for (int k = 0; k < batch.kept; ++k) {
    Interest* const interest = batch.interests[k];
    if (interest->set == this && interest->in_user.load()) {
      listed += Enlist(interest);
    }
  }
  ready_count_.fetch_add(listed, std::memory_order_seq_cst);
  ready_latch_.unlock();
}

// Registrations are taken off first, and put back at the end if still ready.
// So level-triggered streams take turns, as in the kernel.
int EpollSet::Collect(epoll_event* out, int capacity) {
  int filled = 0;
  int looked = 0;
  const int most = ready_count_.load(std::memory_order_relaxed);
  while (filled < capacity && looked < most) {
    Batch batch;
    TakeListed(&batch, capacity - filled);
    if (batch.count == 0) break;
    looked += batch.count;
    for (int b = 0; b < batch.count; ++b) {
      Interest* const interest = batch.interests[b];
      const Listed found = TellListed(interest, out + filled);
      if (found == Listed::kArmedAnew) [[unlikely]] {
        --b;
        continue;
      }
      if (found == Listed::kUntold) [[unlikely]] {
        // As in the kernel, this registration stays as it was, and so do those
        // behind this one.
        Untold(interest);
        for (++b; b < batch.count; ++b) batch.Keep(batch.interests[b]);
        capacity = filled;
        break;
      }
      if (found == Listed::kTold || found == Listed::kToldAndKept) ++filled;
      if (found == Listed::kKept || found == Listed::kToldAndKept) {
        batch.Keep(interest);
      }
    }
    if (batch.kept > 0) PutBack(batch);
  }
  return filled;
}

// Reports registrations that have come onto the list just now, and leaves them
// there.  So no registration is taken off and put back.  Collect handles
// registrations that ask for more, or have more.
int EpollSet::TellFresh(const Fresh& fresh, epoll_event* out, int capacity) {
  int filled = 0;
  for (int k = 0; k < fresh.count && filled < capacity; ++k) {
    Interest* const interest = fresh.interests[k];
    Sock* const sock = interest->sock;
    const std::uint64_t data = interest->data.load(std::memory_order_acquire);
    const std::uint32_t events =
        interest->events.load(std::memory_order_acquire);
    if ((events & kAsked) != EPOLLIN || interest->set != this ||
        sock == nullptr || !interest->in_user.load(std::memory_order_relaxed) ||
        interest->dormant.load(std::memory_order_acquire) ||
        interest->spent.load(std::memory_order_relaxed) ||
        interest->told == wait_number_ || !Looks(sock).HasInput() ||
        !interest->Is(events, data)) {
      continue;
    }
    if (!base::TryTell(out + filled, EPOLLIN, data)) [[unlikely]] {
      Untold(interest);
      break;
    }
    Report(interest, sock);
    ++filled;
  }
  return filled;
}

// Reports what is due and listed, beside the direct streams.  What was on the
// list before has its turn first.
int EpollSet::DrainAndCollect(epoll_event* out, int capacity) {
  int filled = 0;
  if (ready_count_.load(std::memory_order_relaxed) > 0) {
    filled = Collect(out, capacity);
  }
  Fresh fresh;
  const int listed = DrainPoller(&fresh);
  // Another thread may have listed a registration in between, and used up its
  // bit.  A wait that reports nothing must have looked at all registrations.
  if (listed == 0 &&
      (filled > 0 || ready_count_.load(std::memory_order_seq_cst) == 0)) {
    return filled;
  }
  if (listed > 0) cold_ = kColdFor;
  const int told = TellFresh(fresh, out + filled, capacity - filled);
  filled += told;
  return told == listed && filled > 0
             ? filled
             : filled + Collect(out + filled, capacity - filled);
}

bool EpollSet::SomethingReady() {
  DrainSources();
  if (ready_count_.load(std::memory_order_seq_cst) > 0) return true;
  if (AnyDirect()) return true;
  DrainPoller();
  return ready_count_.load(std::memory_order_seq_cst) > 0;
}

}  // namespace rcsock::posix
