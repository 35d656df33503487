// Streams on rdma lanes: how many there may be, which leaves for a hotter
// stream, and what becomes of them when the process ends.

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

void Sock::ListRemote() {
  if (remote_.listed) return;
  const std::uint64_t now = base::NowNs();
  const std::uint64_t bytes = stream_->tx_off() + stream_->rx_off();
  remote_.activity.Begin(now, bytes);
  remote_.heartbeat = {stream_->tx_off(), now};
  remote_.leaving = false;
  lane::rdma::Memory::SetHooks(&LookAtMemorySoon, &MemoryRefused);
  remote_latch.lock();
  remote_.listed = true;
  remote_.prev = nullptr;
  remote_.next = remote_head;
  if (remote_head != nullptr) remote_head->remote_.prev = this;
  remote_head = this;
  remote_latch.unlock();
  RdmaBudget::Add();
  static_cast<lane::rdma::RdmaLane*>(lane_.get())->OnNextPost(&ProbeSoon);
}

void Sock::UnlistRemote() {
  if (!remote_.listed) return;
  remote_latch.lock();
  remote_.listed = false;
  (remote_.prev != nullptr ? remote_.prev->remote_.next : remote_head) =
      remote_.next;
  if (remote_.next != nullptr) remote_.next->remote_.prev = remote_.prev;
  remote_latch.unlock();
  if (std::exchange(remote_.leaving, false)) RdmaBudget::EndLeaving();
  remote_.activity.Forget();
  RdmaBudget::Remove();
}

void Sock::LeavesRemote() {
  if (!remote_.listed || std::exchange(remote_.leaving, true)) return;
  RdmaBudget::BeginLeaving();
}

std::shared_ptr<Sock> Sock::Hold(Sock* sock) {
  int refs = sock->refs_.load(std::memory_order_relaxed);
  while (refs > 0 && !sock->refs_.compare_exchange_weak(refs, refs + 1)) {
  }
  if (refs == 0) return nullptr;
  return Shared(sock, [](Sock* held) { held->Unref(); });
}

// References to all streams of the list that are not on their way out.
std::vector<Shared> Sock::Remotes() {
  std::vector<Shared> all;
  remote_latch.lock();
  for (Sock* at = remote_head; at != nullptr; at = at->remote_.next) {
    if (Shared held = Hold(at)) all.push_back(std::move(held));
  }
  remote_latch.unlock();
  return all;
}

// A lane reports its next message.  From then on it is asked now and then
// whether all has landed, until it has.  So a silent lane costs nothing.
void Sock::ProbeSoon() { Arrange(&probing, kProbeMs, &ProbeRemotes); }

void Sock::ProbeRemotes() {
  Critical critical;
  // Cleared first, so that a lane may report during the look.
  probing.store(false, std::memory_order_release);
  bool again = false;
  const std::uint64_t now = base::NowNs();
  for (const Shared& sock : Remotes()) {
    Latched latched(sock.get());
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && sock->lane_kind_ == lane::Kind::kRdma) {
      // What comes from the peer needs this end's acknowledgements, so the way
      // to the peer is there.  Thousands of busy streams need not ask each.
      const std::uint64_t rx = sock->stream_->rx_off();
      if (sock->remote_.heartbeat.Due(now, sock->stream_->tx_off())) {
        sock->stream_->Beat();
      }
      if (std::exchange(sock->remote_.probe_rx, rx) != rx ||
          sock->stream_->Probe()) {
        again = true;
      } else {
        static_cast<lane::rdma::RdmaLane*>(sock->lane_.get())
            ->OnNextPost(&ProbeSoon);
      }
      sock->HandleChanges();
    }
  }
  if (again) ProbeSoon();
}

// --- Room

// For the connecting end, before it asks its conductor.  Its search has begun.
bool Sock::RoomForRemote() {
  if (role_ == stream::Role::kAcceptor) return true;
  const std::uint64_t now = base::NowNs();
  const bool full = !RdmaBudget::Room();
  const bool contested = RdmaBudget::Contested(now);
  if (!full && !contested) return true;
  const Pace mine = remote_.activity.Take(now, calls_.bytes(), calls_.count());
  if (mine.span_ns == 0) return false;
  if (full) {
    if (RdmaBudget::MayChallenge(mine)) Challenge(mine);
    return false;
  }
  return RdmaBudget::Admits(mine);
}

// Runs on the conductor, just before a lane is made.
bool Sock::TakePlace(base::Reason* why) {
  const std::uint64_t now = base::NowNs();
  *why = Reason::kBudget;
  if (role_ == stream::Role::kConnector) {
    // It has waited in the queue for long, and has moved nothing meanwhile.
    if (calls_.bytes() == remote_.sought_bytes &&
        now - remote_.sought_ns > RdmaBudget::kSpanNs) {
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
    const Pace mine = remote_.activity.Take(now, calls_.bytes(), 0);
    if (mine.span_ns != 0) Challenge(mine);
    return false;
  }
  RdmaBudget::TakePlace();
  return true;
}

void Sock::LeavePlace() { RdmaBudget::LeavePlace(); }

void Sock::Challenge(const Pace& mine) {
  if (!RdmaBudget::MaySearch(base::NowNs())) return;
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->Post([mine] { EvictFor(mine); });
  }
}

// Runs on the conductor.
void Sock::EvictFor(const Pace& newcomer) {
  Critical critical;
  if (RdmaBudget::NoneMustGo()) return;
  const std::uint64_t now = base::NowNs();
  Sock* coldest = nullptr;
  Eviction eviction(newcomer, now);
  const std::vector<Shared> all = Remotes();
  for (const Shared& sock : all) {
    Latched latched(sock.get());
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && !sock->remote_.leaving) {
      Activity& its = sock->remote_.activity;
      const Pace pace =
          its.Take(now, sock->stream_->tx_off() + sock->stream_->rx_off(), 0);
      if (eviction.Coldest(pace, its.active_ns)) coldest = sock.get();
    }
  }
  if (coldest == nullptr || !eviction.Worthwhile()) return;
  RCSOCK_LOG(2, "fd %d: %llu bytes/s: makes room for one of %llu",
             coldest->fd(), static_cast<unsigned long long>(eviction.rate()),
             static_cast<unsigned long long>(newcomer.rate));
  RdmaBudget::Evicted(now, newcomer);
  stats.evicted_budget.fetch_add(1, std::memory_order_relaxed);
  coldest->Evict(Reason::kBudget);
}

void Sock::Evict(Reason reason) {
  Latched latched(this);
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Demote(reason, false);
    stream_->Progress();
    HandleChanges();
  }
}

// Runs on the conductor, while there are lanes with large rings.
void RemoteLanes::MemoryLook() {
  Critical critical;
  // Cleared first, so that the next look sees what grows during this one.
  memory_look.store(false, std::memory_order_release);
  const bool wanted = memory_short.exchange(false, std::memory_order_relaxed);
  const std::uint64_t now = base::NowNs();
  bool grown = false;
  Shared coldest;
  std::uint64_t coldest_rate = 0;
  std::uint64_t hottest_rate = 0;
  std::vector<Shared> idle;
  for (const Shared& sock : Sock::Remotes()) {
    Latched latched(sock.get());
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && !sock->remote_.leaving) {
      Activity& its = sock->remote_.activity;
      const std::uint64_t bytes =
          sock->stream_->tx_off() + sock->stream_->rx_off();
      const Pace pace = its.Take(now, bytes, 0);
      hottest_rate = std::max(hottest_rate, pace.rate);
      // Traffic that small rings would carry as well is no use of large rings.
      if (bytes - its.grown_bytes > lane::rdma::Memory::kSmall) {
        its.grown_bytes = bytes;
        its.grown_ns = now;
      }
      if (static_cast<lane::rdma::RdmaLane*>(sock->lane_.get())->Pinned() >
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
    sock->Evict(Reason::kIdleRings);
  }
  if (wanted && idle.empty() && coldest != nullptr &&
      hottest_rate / RdmaBudget::kHotter >= coldest_rate) {
    RCSOCK_LOG(2, "fd %d: %llu bytes/s: gives its rings back", coldest->fd(),
               static_cast<unsigned long long>(coldest_rate));
    stats.evicted_memory.fetch_add(1, std::memory_order_relaxed);
    coldest->Evict(Reason::kBudget);
  }
  if (grown) LookAtMemorySoon();
}

// Runs on the conductor, while lanes in shared memory have touched more of
// their rings than an idle lane keeps.
void RemoteLanes::SharedLook() {
  Critical critical;
  // Cleared first, so that the next look sees what grows during this one.
  shared_look.store(false, std::memory_order_release);
  const std::uint64_t now = base::NowNs();
  std::vector<Shared> all;
  ForEachSock([&all](Sock* sock) {
    if (!sock->OnLane()) return;
    if (Shared held = Sock::Hold(sock)) all.push_back(std::move(held));
  });
  bool grown = false;
  for (const Shared& sock : all) {
    bool idle = false;
    {
      Latched latched(sock.get());
      if (sock->mode() != Mode::kEngine || sock->stream_ == nullptr ||
          sock->lane_ == nullptr || !sock->lane_is_shm_ ||
          static_cast<lane::shm::ShmLane*>(sock->lane_.get())->touched() <=
              lane::shm::Touched::kIdle) {
        continue;
      }
      Activity& its = sock->remote_.activity;
      const std::uint64_t bytes =
          sock->stream_->tx_off() + sock->stream_->rx_off();
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
      sock->Evict(Reason::kIdleRings);
    }
  }
  if (grown) LookAtSharedSoon();
}

// What a stream that leaves its lane still expects from the peer: its bytes,
// and one for the answer; 0: nothing.
std::uint64_t Sock::OnItsWay() {
  Latched latched(this);
  if (mode() != Mode::kEngine || stream_ == nullptr || finished_) return 0;
  if (stream_->tx() == stream::Tx::kRaw) {
    // If the peer's RAW were left unread, the end would be a reset.
    return stream_->rx() != stream::Rx::kRaw ? 1 : 0;
  }
  return stream_->Unacked() + (stream_->tx() == stream::Tx::kDown ? 1 : 0);
}

void RemoteLanes::LeaveAll(std::uint64_t deadline_ns) {
  Critical critical;
  if (!RdmaBudget::Any() || Conductor::IfRunning() == nullptr) {
    return;
  }
  const std::vector<Shared> remotes = Sock::Remotes();
  for (const Shared& sock : remotes) {
    Latched latched(sock.get());
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && !sock->stream_->AwaitsLanding() &&
        (sock->stream_->Unacked() > 0 ||
         sock->stream_->tx() == stream::Tx::kLane)) {
      // Also if the peer has acknowledged everything: this end's credit for
      // what was read may die with the device.  LANE_DOWN says it over TCP.
      sock->stream_->Demote(Reason::kPolicy, false);
      sock->stream_->Progress();
      sock->HandleChanges();
    }
  }
  // All streams wait together, since one peer's answer says nothing of
  // another's.  If nothing has come from any peer for a second, they are
  // stopped, or gone.
  constexpr std::uint64_t kSilentNs = 1'000'000'000;
  std::vector<Shared> waiting = remotes;
  std::uint64_t left = ~std::uint64_t{0};
  for (std::uint64_t heard_ns = base::NowNs();;) {
    std::uint64_t now_left = 0;
    std::erase_if(waiting, [&](const Shared& sock) {
      const std::uint64_t more = sock->OnItsWay();
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
