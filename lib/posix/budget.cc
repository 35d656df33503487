// Streams on rdma lanes: how many there may be, which leaves for a hotter
// stream, and what becomes of them when the process ends.

#include "lib/posix/budget.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/sleep.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/lane/shm/touched.h"
#include "lib/posix/each_sock.h"
#include "lib/posix/sock.h"
#include "lib/posix/stats.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

using Shared = std::shared_ptr<Sock>;

base::Latch remote_latch;
Sock* remote_head RC_GUARDED_BY(remote_latch) = nullptr;
std::atomic<std::uint32_t> remote_count{0};
std::atomic<std::uint32_t> places{0};   // handshakes under way
std::atomic<std::uint32_t> leaving{0};  // listed, and on their way to TCP
std::atomic<bool> probing{false};       // a look is arranged
constexpr std::uint32_t kProbeMs = 250;

// What an idle lane pins: the block that the peer writes to, and the mirror of
// the peer's block.
constexpr std::uint64_t kIdlePinned = 2 * lane::rdma::Memory::kSmall;

// --- Eviction
//
// A stream that finds no room has to be clearly hotter than a stream that has
// it.  A promotion costs both hosts a handshake of milliseconds.  If all are
// equally active, no stream's leaving is worth that.  Both are measured over a
// second at least, and over enough calls that chance does not decide.  A
// resident is measured over about as long a time as the newcomer.
constexpr std::uint64_t kSpanNs = 1'000'000'000;
constexpr std::uint32_t kLeastOps = 32;
constexpr std::uint64_t kHotter = 4;
// The least time between two, since each visits every promoted stream.
constexpr std::uint64_t kBetweenEvictionsNs = 5'000'000;
std::atomic<std::uint64_t> last_eviction_ns{0};
// For a while after an eviction only streams of such a rate may take the place.
constexpr std::uint64_t kAdmissionNs = 2'000'000'000;
std::atomic<std::uint64_t> admission_until_ns{0};
std::atomic<std::uint64_t> admission_rate{0};

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
  Arrange(&memory_look, kMemoryLookMs, &Sock::MemoryLook);
}

std::atomic<bool> shared_look{false};  // is arranged

void LookAtSharedSoon() {
  Arrange(&shared_look, kMemoryLookMs, &Sock::SharedLook);
}

void MemoryRefused() {
  memory_short.store(true, std::memory_order_relaxed);
  LookAtMemorySoon();
}

bool RoomNow() {
  const base::Config& config = base::GetConfig();
  const std::uint32_t under_way = places.load(std::memory_order_relaxed);
  const std::uint32_t used =
      remote_count.load(std::memory_order_relaxed) + under_way;
  const std::uint64_t each = kIdlePinned + lane::rdma::Memory::OfLane();
  return used < config.max_qps &&
         (config.max_pinned == 0 ||
          lane::rdma::Memory::Total() + each * (under_way + 1) <=
              config.max_pinned);
}

}  // namespace

void WatchSharedRings() { lane::shm::Touched::SetHook(&LookAtSharedSoon); }

void RemoteForkLock() { remote_latch.LockForFork(); }

void RemoteForkUnlock(bool child) {
  remote_latch.AssertUnshared();
  if (child) {
    remote_head = nullptr;
    remote_count.store(0, std::memory_order_relaxed);
    places.store(0, std::memory_order_relaxed);
    leaving.store(0, std::memory_order_relaxed);
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
  remote_.looks[0] = remote_.looks[1] = {now, bytes, 0};
  remote_.active_ns = now;
  remote_.grown_bytes = bytes;
  remote_.grown_ns = now;
  remote_.beat_off = stream_->tx_off();
  remote_.beat_ns = now;
  remote_.leaving = false;
  lane::rdma::Memory::SetHooks(&LookAtMemorySoon, &MemoryRefused);
  remote_latch.lock();
  remote_.listed = true;
  remote_.prev = nullptr;
  remote_.next = remote_head;
  if (remote_head != nullptr) remote_head->remote_.prev = this;
  remote_head = this;
  remote_latch.unlock();
  remote_count.fetch_add(1, std::memory_order_relaxed);
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
  if (std::exchange(remote_.leaving, false)) {
    leaving.fetch_sub(1, std::memory_order_relaxed);
  }
  // The looks on the lane say nothing about its traffic on TCP.
  remote_.looks[0] = remote_.looks[1] = {};
  remote_count.fetch_sub(1, std::memory_order_relaxed);
}

void Sock::LeavesRemote() {
  if (!remote_.listed || std::exchange(remote_.leaving, true)) return;
  leaving.fetch_add(1, std::memory_order_relaxed);
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

// Firewalls forget a silent connection after some minutes.
constexpr std::uint64_t kBeatNs = 60'000'000'000;

bool Remote::Beats(std::uint64_t now, std::uint64_t tx_off) {
  if (tx_off == beat_off || now - beat_ns < kBeatNs) return false;
  beat_off = tx_off;
  beat_ns = now;
  return true;
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
      if (sock->remote_.Beats(now, sock->stream_->tx_off())) {
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

Pace Remote::Take(std::uint64_t now, std::uint64_t bytes, std::uint32_t ops) {
  Pace pace;
  if (looks[0].ns == 0) {
    looks[0] = looks[1] = {now, bytes, ops};
    return pace;
  }
  const std::uint64_t span = now - looks[0].ns;
  if (span < kSpanNs) return pace;
  pace.span_ns = span;
  pace.rate =
      (bytes - std::min(bytes, looks[0].bytes)) * 1'000'000 / (span / 1000);
  pace.ops = ops - looks[0].ops;
  if (bytes != looks[1].bytes) active_ns = now;
  if (now - looks[1].ns >= kSpanNs) {
    looks[0] = looks[1];
    looks[1] = {now, bytes, ops};
  }
  return pace;
}

// For the connecting end, before it asks its conductor.  Its search has begun.
bool Sock::RoomForRemote() {
  if (role_ == stream::Role::kAcceptor) return true;
  const std::uint64_t now = base::NowNs();
  const bool full = !RoomNow();
  const bool contested =
      now < admission_until_ns.load(std::memory_order_relaxed);
  if (!full && !contested) return true;
  const Pace mine = remote_.Take(now, RawBytes(), ops());
  if (mine.span_ns == 0) return false;
  if (full) {
    if (mine.ops >= kLeastOps) Challenge(mine);
    return false;
  }
  return mine.rate >= admission_rate.load(std::memory_order_relaxed);
}

// Runs on the conductor, just before a lane is made.
bool Sock::TakePlace(base::Reason* why) {
  const std::uint64_t now = base::NowNs();
  *why = Reason::kBudget;
  if (role_ == stream::Role::kConnector) {
    // It has waited in the queue for long, and has moved nothing meanwhile.
    if (RawBytes() == remote_.sought_bytes &&
        now - remote_.sought_ns > kSpanNs) {
      *why = Reason::kTimeout;
      return false;
    }
    if (!RoomNow()) return false;
  } else if (!RoomNow()) {
    if (leaving.load(std::memory_order_relaxed) > 0) {
      *why = Reason::kPending;
      return false;
    }
    // The connecting end comes again as long as there is traffic.
    const Pace mine = remote_.Take(now, RawBytes(), 0);
    if (mine.span_ns != 0) Challenge(mine);
    return false;
  }
  places.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Sock::LeavePlace() { places.fetch_sub(1, std::memory_order_relaxed); }

void Sock::Challenge(const Pace& mine) {
  const std::uint64_t now = base::NowNs();
  std::uint64_t last = last_eviction_ns.load(std::memory_order_relaxed);
  if (now - last < kBetweenEvictionsNs ||
      !last_eviction_ns.compare_exchange_strong(last, now)) {
    return;
  }
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->Post([mine] { EvictFor(mine); });
  }
}

// Runs on the conductor.
void Sock::EvictFor(const Pace& newcomer) {
  Critical critical;
  // Enough streams are leaving already, or no stream has taken the free place
  // yet.
  if (RoomNow() || leaving.load(std::memory_order_relaxed) >
                       std::min(base::GetConfig().max_qps / 16, 16u)) {
    return;
  }
  const std::uint64_t now = base::NowNs();
  Sock* coldest = nullptr;
  std::uint64_t coldest_rate = 0;
  std::uint64_t coldest_active = 0;
  const std::vector<Shared> all = Remotes();
  for (const Shared& sock : all) {
    Latched latched(sock.get());
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && !sock->remote_.leaving) {
      const Pace pace = sock->remote_.Take(
          now, sock->stream_->tx_off() + sock->stream_->rx_off(), 0);
      const std::uint64_t active = sock->remote_.active_ns;
      // A pause that the newcomer might have made, too, is no end.
      const bool idle = pace.span_ns != 0 &&
                        now - active >= std::max(kSpanNs, 2 * newcomer.span_ns);
      const bool known = idle || (pace.span_ns != 0 && pace.rate != 0 &&
                                  pace.span_ns >= newcomer.span_ns / 2);
      const std::uint64_t rate = idle ? 0 : pace.rate;
      if (known && (coldest == nullptr || rate < coldest_rate ||
                    (rate == coldest_rate && active < coldest_active))) {
        coldest = sock.get();
        coldest_rate = rate;
        coldest_active = active;
      }
    }
  }
  if (coldest == nullptr ||
      (coldest_rate != 0 && newcomer.rate / kHotter < coldest_rate)) {
    return;
  }
  RCSOCK_LOG(2, "fd %d: %llu bytes/s: makes room for one of %llu",
             coldest->fd(), static_cast<unsigned long long>(coldest_rate),
             static_cast<unsigned long long>(newcomer.rate));
  admission_rate.store(newcomer.rate / 2, std::memory_order_relaxed);
  admission_until_ns.store(now + kAdmissionNs, std::memory_order_relaxed);
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
void Sock::MemoryLook() {
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
  for (const Shared& sock : Remotes()) {
    Latched latched(sock.get());
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && !sock->remote_.leaving) {
      Remote& its = sock->remote_;
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
          kIdlePinned) {
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
      hottest_rate / kHotter >= coldest_rate) {
    RCSOCK_LOG(2, "fd %d: %llu bytes/s: gives its rings back", coldest->fd(),
               static_cast<unsigned long long>(coldest_rate));
    stats.evicted_memory.fetch_add(1, std::memory_order_relaxed);
    coldest->Evict(Reason::kBudget);
  }
  if (grown) LookAtMemorySoon();
}

// Runs on the conductor, while lanes in shared memory have touched more of
// their rings than an idle lane keeps.
void Sock::SharedLook() {
  Critical critical;
  // Cleared first, so that the next look sees what grows during this one.
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
      if (sock->mode() != Mode::kEngine || sock->stream_ == nullptr ||
          sock->lane_ == nullptr || !sock->lane_is_shm_ ||
          static_cast<lane::shm::ShmLane*>(sock->lane_.get())->touched() <=
              lane::shm::Touched::kIdle) {
        continue;
      }
      Remote& its = sock->remote_;
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

void Sock::LeaveRemoteLanes(std::uint64_t deadline_ns) {
  Critical critical;
  if (remote_count.load(std::memory_order_relaxed) == 0 ||
      Conductor::IfRunning() == nullptr) {
    return;
  }
  const std::vector<Shared> remotes = Remotes();
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
  for (const Shared& sock : remotes) sock->FlushAtExit(deadline_ns);
}

}  // namespace rcsock::posix
