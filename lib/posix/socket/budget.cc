// Streams on RDMA lanes: how many there may be, which stream leaves for a
// hotter one, and what becomes of them when the process ends.

#include "lib/posix/socket/budget.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/sleep.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/lane/shm/touched.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

using Shared = std::shared_ptr<Sock>;

base::Latch remote_latch;
Sock* remote_head RC_GUARDED_BY(remote_latch) = nullptr;
std::atomic<bool> probing{false};  // a look is arranged
constexpr std::uint32_t kProbeMs = 250;

// Calls `task` after `ms`, unless `arranged` says that the call is arranged
// already.  The task clears `arranged`.
void Arrange(std::atomic<bool>* arranged, std::uint32_t ms, void (*task)()) {
  if (arranged->exchange(true, std::memory_order_acq_rel)) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor != nullptr && conductor->After(ms, task) == 0) {
    arranged->store(false, std::memory_order_release);
  }
}

// --- Memory
//
// Streams with grown rings that are idle, or nearly idle, give them back,
// sooner when other streams want some.  A ring cannot shrink in place: only a
// message of its sender changes it, and an idle sender sends none.
constexpr std::uint32_t kMemoryLookMs = 1000;
constexpr std::uint64_t kIdleNs = 4'000'000'000;
std::atomic<bool> memory_look{false};  // is arranged
std::atomic<bool> memory_short{false};

void LookAtMemorySoon() {
  Arrange(&memory_look, kMemoryLookMs, &RemoteLanes::MemoryLook);
}

std::atomic<bool> shared_look{false};  // is arranged

void LookAtSharedSoon() {
  Arrange(&shared_look, kMemoryLookMs, &RemoteLanes::SharedLook);
}

void MemoryRefused() {
  memory_short.store(true, std::memory_order_relaxed);
  LookAtMemorySoon();
}

}  // namespace

void WatchSharedRings() { lane::shm::Touched::SetHook(&LookAtSharedSoon); }

void RemoteForkLock() { remote_latch.LockForFork(); }

void RemoteForkUnlock(bool child) {
  remote_latch.AssertUnshared();
  if (child) {
    remote_head = nullptr;
    RdmaBudget::ForkChild();
    memory_look.store(false, std::memory_order_relaxed);
    shared_look.store(false, std::memory_order_relaxed);
    probing.store(false, std::memory_order_relaxed);
  }
  remote_latch.UnlockAfterFork(child);
}

void RemoteLanes::Add(Sock* sock) {
  RemoteLane& its = sock->remote();
  remote_latch.lock();
  its.listed_ = true;
  its.prev_ = nullptr;
  its.next_ = remote_head;
  if (remote_head != nullptr) remote_head->remote().prev_ = sock;
  remote_head = sock;
  remote_latch.unlock();
  RdmaBudget::Add();
}

void RemoteLanes::Remove(Sock* sock) {
  RemoteLane& its = sock->remote();
  remote_latch.lock();
  its.listed_ = false;
  (its.prev_ != nullptr ? its.prev_->remote().next_ : remote_head) = its.next_;
  if (its.next_ != nullptr) its.next_->remote().prev_ = its.prev_;
  remote_latch.unlock();
  RdmaBudget::Remove();
}

std::vector<Shared> RemoteLanes::All() {
  std::vector<Shared> all;
  remote_latch.lock();
  for (Sock* at = remote_head; at != nullptr; at = at->remote().next_) {
    if (Shared held = Hold(at)) all.push_back(std::move(held));
  }
  remote_latch.unlock();
  return all;
}

void RemoteLane::Seeks() {
  sought_ns_ = base::NowNs();
  sought_bytes_ = sock_->calls().bytes();
  sought_calls_ = sock_->calls().count();
  queue_ = QueueOfThread();
}

void RemoteLane::List() {
  if (listed_) return;
  const std::uint64_t now = base::NowNs();
  const stream::Stream& stream = *sock_->engine();
  activity_.Begin(now, stream.tx_off() + stream.rx_off());
  heartbeat_ = {stream.tx_off(), now};
  leaving_ = false;
  lane::rdma::Memory::SetHooks(&LookAtMemorySoon, &MemoryRefused);
  RemoteLanes::Add(sock_);
  static_cast<lane::rdma::RdmaLane*>(sock_->lane())
      ->OnNextPost(&RemoteLanes::ProbeSoon);
}

void RemoteLane::Unlist() {
  if (!listed_) return;
  RemoteLanes::Remove(sock_);
  if (std::exchange(leaving_, false)) RdmaBudget::EndLeaving();
  activity_.Forget();
}

void RemoteLane::Leaves() {
  if (!listed_ || std::exchange(leaving_, true)) return;
  RdmaBudget::BeginLeaving();
}

// A lane reports its next message.  From then on it is asked now and then
// whether all has landed, until it has.  So a silent lane costs nothing.
void RemoteLanes::ProbeSoon() { Arrange(&probing, kProbeMs, &Probe); }

void RemoteLanes::Probe() {
  Critical critical;
  // The flag is cleared first, so that a lane may report during the look.
  probing.store(false, std::memory_order_release);
  bool again = false;
  const std::uint64_t now = base::NowNs();
  for (const Shared& sock : All()) {
    Latched latched(sock.get());
    stream::Stream* const stream = sock->engine();
    lane::Lane* const lane = sock->lane();
    if (stream != nullptr && lane != nullptr &&
        lane->kind() == lane::Kind::kRdma) {
      RemoteLane& its = sock->remote();
      // What comes from the peer needs this end's acknowledgements, so the way
      // to the peer is there.  Thousands of busy streams need not ask each.
      const std::uint64_t rx = stream->rx_off();
      if (its.heartbeat_.Due(now, stream->tx_off())) stream->Beat();
      if (std::exchange(its.probe_rx_, rx) != rx || stream->Probe()) {
        again = true;
      } else {
        static_cast<lane::rdma::RdmaLane*>(lane)->OnNextPost(&ProbeSoon);
      }
      sock->HandleChanges();
    }
  }
  if (again) ProbeSoon();
}

// --- Room

// Requires that the search has begun.
bool RemoteLane::HasRoom() {
  if (sock_->peer().accepted()) return true;
  const std::uint64_t now = base::NowNs();
  const bool full = !RdmaBudget::Room();
  const bool contested = RdmaBudget::Contested(now);
  if (!full && !contested) return true;
  const PlainCalls& calls = sock_->calls();
  const Pace mine = activity_.Take(now, calls.bytes(), calls.count());
  if (mine.span_ns == 0) return false;
  if (full) {
    if (RdmaBudget::MayChallenge(mine)) RemoteLanes::Challenge(mine);
    return false;
  }
  return RdmaBudget::Admits(mine);
}

// Runs on the conductor, just before a lane is made.
bool RemoteLane::TakePlace(base::Reason* why) {
  const std::uint64_t now = base::NowNs();
  const std::uint64_t bytes = sock_->calls().bytes();
  *why = Reason::kBudget;
  if (!sock_->peer().accepted()) {
    // The stream has waited in the queue for long, and has moved nothing
    // meanwhile.
    if (bytes == sought_bytes_ && now - sought_ns_ > RdmaBudget::kSpanNs) {
      *why = Reason::kTimeout;
      return false;
    }
    if (!RdmaBudget::Room()) return false;
  } else if (!RdmaBudget::Room()) {
    if (RdmaBudget::AnyLeaves()) {
      *why = Reason::kPending;
      return false;
    }
    // The connecting end comes again as long as there is traffic.
    const Pace mine = activity_.Take(now, bytes, 0);
    if (mine.span_ns != 0) RemoteLanes::Challenge(mine);
    return false;
  }
  RdmaBudget::TakePlace();
  return true;
}

void RemoteLanes::Challenge(const Pace& newcomer) {
  if (!RdmaBudget::MaySearch(base::NowNs())) return;
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->Post([newcomer] { EvictFor(newcomer); });
  }
}

static void Evict(Sock* sock, Reason reason) {
  Latched latched(sock);
  if (stream::Stream* const stream = sock->engine()) {
    stream->Demote(reason, false);
    stream->Progress();
    sock->HandleChanges();
  }
}

// Runs on the conductor.
void RemoteLanes::EvictFor(const Pace& newcomer) {
  Critical critical;
  if (RdmaBudget::NoneMustGo()) return;
  const std::uint64_t now = base::NowNs();
  Sock* coldest = nullptr;
  Eviction eviction(newcomer, now);
  const std::vector<Shared> all = All();
  for (const Shared& sock : all) {
    Latched latched(sock.get());
    const stream::Stream* const stream = sock->engine();
    if (stream != nullptr && sock->lane() != nullptr &&
        !sock->remote().leaving_) {
      Activity& its = sock->remote().activity_;
      const Pace pace = its.Take(now, stream->tx_off() + stream->rx_off(), 0);
      if (eviction.Coldest(pace, its.active_ns)) coldest = sock.get();
    }
  }
  if (coldest == nullptr || !eviction.Worthwhile()) return;
  RCSOCK_LOG(2, "fd %d: %llu bytes/s: makes room for one of %llu",
             coldest->fd(), static_cast<unsigned long long>(eviction.rate()),
             static_cast<unsigned long long>(newcomer.rate));
  RdmaBudget::Evicted(now, newcomer);
  stats.evicted_budget.fetch_add(1, std::memory_order_relaxed);
  Evict(coldest, Reason::kBudget);
}

// Runs on the conductor, while there are lanes with large rings.
void RemoteLanes::MemoryLook() {
  Critical critical;
  // The flag is cleared first, so that the next look sees what grows during
  // this one.
  memory_look.store(false, std::memory_order_release);
  const bool wanted = memory_short.exchange(false, std::memory_order_relaxed);
  const std::uint64_t now = base::NowNs();
  bool grown = false;
  Shared coldest;
  std::uint64_t coldest_rate = 0;
  std::uint64_t hottest_rate = 0;
  std::vector<Shared> idle;
  for (const Shared& sock : All()) {
    Latched latched(sock.get());
    const stream::Stream* const stream = sock->engine();
    if (stream != nullptr && sock->lane() != nullptr &&
        !sock->remote().leaving_) {
      Activity& its = sock->remote().activity_;
      const std::uint64_t bytes = stream->tx_off() + stream->rx_off();
      const Pace pace = its.Take(now, bytes, 0);
      hottest_rate = std::max(hottest_rate, pace.rate);
      // Traffic that small rings would carry as well is no use of large rings.
      if (bytes - its.grown_bytes > lane::rdma::Memory::kSmall) {
        its.grown_bytes = bytes;
        its.grown_ns = now;
      }
      if (static_cast<lane::rdma::RdmaLane*>(sock->lane())->Pinned() >
          RdmaBudget::IdlePinned()) {
        grown = true;
        if (now - its.grown_ns >= (wanted ? kIdleNs / 4 : kIdleNs)) {
          idle.push_back(sock);
        } else if (pace.span_ns != 0 &&
                   (coldest == nullptr || pace.rate < coldest_rate)) {
          coldest = sock;
          coldest_rate = pace.rate;
        }
      }
    }
  }
  for (const Shared& sock : idle) {
    RCSOCK_LOG(2, "fd %d: idle: gives its rings back", sock->fd());
    stats.evicted_idle.fetch_add(1, std::memory_order_relaxed);
    Evict(sock.get(), Reason::kIdleRings);
  }
  if (wanted && idle.empty() && coldest != nullptr &&
      hottest_rate / RdmaBudget::kHotter >= coldest_rate) {
    RCSOCK_LOG(2, "fd %d: %llu bytes/s: gives its rings back", coldest->fd(),
               static_cast<unsigned long long>(coldest_rate));
    stats.evicted_memory.fetch_add(1, std::memory_order_relaxed);
    Evict(coldest.get(), Reason::kBudget);
  }
  if (grown) LookAtMemorySoon();
}

// Runs on the conductor, while lanes in shared memory have touched more of
// their rings than an idle lane keeps.
void RemoteLanes::SharedLook() {
  Critical critical;
  // The flag is cleared first, so that the next look sees what grows during
  // this one.
  shared_look.store(false, std::memory_order_release);
  const std::uint64_t now = base::NowNs();
  std::vector<Shared> all;
  ForEachSock([&all](Sock* sock) {
    if (!sock->OnLane()) return;
    if (Shared held = Hold(sock)) all.push_back(std::move(held));
  });
  bool grown = false;
  for (const Shared& sock : all) {
    bool idle = false;
    {
      Latched latched(sock.get());
      const stream::Stream* const stream = sock->engine();
      lane::Lane* const lane = sock->lane();
      if (stream == nullptr || lane == nullptr ||
          lane->kind() != lane::Kind::kShm ||
          static_cast<lane::shm::ShmLane*>(lane)->touched() <=
              lane::shm::Touched::kIdle) {
        continue;
      }
      Activity& its = sock->remote().activity_;
      const std::uint64_t bytes = stream->tx_off() + stream->rx_off();
      if (its.grown_ns == 0 || bytes != its.grown_bytes) {
        its.grown_bytes = bytes;
        its.grown_ns = now;
      }
      idle = now - its.grown_ns >= kIdleNs;
      grown = grown || !idle;
    }
    if (idle) {
      RCSOCK_LOG(2, "fd %d: idle: gives its rings back", sock->fd());
      stats.evicted_idle.fetch_add(1, std::memory_order_relaxed);
      Evict(sock.get(), Reason::kIdleRings);
    }
  }
  if (grown) LookAtSharedSoon();
}

// What a stream that leaves its lane still expects from the peer: its bytes,
// and one for the answer; 0: nothing.
static std::uint64_t OnItsWay(Sock* sock) {
  Latched latched(sock);
  const stream::Stream* const stream = sock->engine();
  if (stream == nullptr || sock->ending().finished()) return 0;
  if (stream->tx() == stream::Tx::kRaw) {
    // If the peer's RAW were left unread, the end would be a reset.
    return stream->rx() != stream::Rx::kRaw ? 1 : 0;
  }
  return stream->Unacked() + (stream->tx() == stream::Tx::kDown ? 1 : 0);
}

void RemoteLanes::LeaveAll(std::uint64_t deadline_ns) {
  Critical critical;
  if (!RdmaBudget::Any() || Conductor::IfRunning() == nullptr) {
    return;
  }
  const std::vector<Shared> remotes = All();
  for (const Shared& sock : remotes) {
    Latched latched(sock.get());
    stream::Stream* const stream = sock->engine();
    if (stream != nullptr && sock->lane() != nullptr &&
        !stream->AwaitsLanding() &&
        (stream->Unacked() > 0 || stream->tx() == stream::Tx::kLane)) {
      // The stream leaves also if the peer has acknowledged everything: this
      // end's credit for what was read may die with the device.  LANE_DOWN
      // tells the peer over TCP what was read.
      stream->Demote(Reason::kPolicy, false);
      stream->Progress();
      sock->HandleChanges();
    }
  }
  // All streams wait together, since one peer's answer says nothing of
  // another's.  If nothing has come from any peer for a second, the peers are
  // stopped, or gone.
  constexpr std::uint64_t kSilentNs = 1'000'000'000;
  std::vector<Shared> waiting = remotes;
  std::uint64_t left = ~std::uint64_t{0};
  for (std::uint64_t heard_ns = base::NowNs();;) {
    std::uint64_t now_left = 0;
    std::erase_if(waiting, [&](const Shared& sock) {
      const std::uint64_t more = OnItsWay(sock.get());
      now_left += more;
      return more == 0;
    });
    const std::uint64_t now = base::NowNs();
    if (waiting.empty() || now >= deadline_ns) break;
    if (now_left != left) {
      left = now_left;
      heard_ns = now;
    } else if (now - heard_ns >= kSilentNs) {
      break;
    }
    base::SleepThrough(100'000);  // the conductor reads the peers' answers
  }
  for (const Shared& sock : remotes)
    sock->across_exec().Flush(deadline_ns, false);
}

}  // namespace rcsock::posix
