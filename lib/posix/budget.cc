// Streams on rdma lanes: how many there may be, which of them leaves for a
// hotter one, and what becomes of them when the process ends.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

using Shared = std::shared_ptr<Sock>;

base::Latch remote_latch;
Sock* remote_head = nullptr;
std::atomic<std::uint32_t> remote_count{0};
std::atomic<bool> probing{false};  // a look is arranged
constexpr std::uint32_t kProbeMs = 250;
// The last time that somebody was asked to leave.
std::atomic<std::uint64_t> last_eviction_ns{0};

// Not oftener: each look visits every promoted stream.
constexpr std::uint64_t kBetweenEvictionsNs = 2'000'000;
// A stream that has just been promoted must have had time to show what it does.
constexpr std::uint64_t kResidencyNs = 200'000'000;
// How much hotter the newcomer must be: a promotion costs both hosts a
// handshake of milliseconds.
constexpr std::uint64_t kHotter = 4;

}  // namespace

void RemoteForkLock() { remote_latch.lock(); }

void RemoteForkUnlock(bool child) {
  if (child) {
    remote_head = nullptr;
    remote_count.store(0, std::memory_order_relaxed);
    probing.store(false, std::memory_order_relaxed);
    remote_latch.Reset();
  } else {
    remote_latch.unlock();
  }
}

void Sock::ListRemote() {
  if (remote_.listed) return;
  const std::uint64_t now = base::NowNs();
  remote_.since_ns = now;
  remote_.looked_ns = now;
  remote_.looked_bytes = stream_->tx_off() + stream_->rx_off();
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
  remote_count.fetch_sub(1, std::memory_order_relaxed);
}

// A reference to each stream of the list that is not on its way out.
std::vector<Shared> Sock::Remotes() {
  std::vector<Shared> all;
  remote_latch.lock();
  for (Sock* at = remote_head; at != nullptr; at = at->remote_.next) {
    int refs = at->refs_.load(std::memory_order_relaxed);
    while (refs > 0 && !at->refs_.compare_exchange_weak(refs, refs + 1)) {
    }
    if (refs > 0) all.emplace_back(at, [](Sock* sock) { sock->Unref(); });
  }
  remote_latch.unlock();
  return all;
}

// A lane tells of its next message, and from then on it is asked now and then
// whether all has landed, until it has: a silent one costs nothing.
void Sock::ProbeSoon() {
  if (probing.exchange(true, std::memory_order_acq_rel)) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor != nullptr) conductor->After(kProbeMs, [] { ProbeRemotes(); });
}

void Sock::ProbeRemotes() {
  Critical critical;
  // First, so that a lane that is told to tell may do so during the look.
  probing.store(false, std::memory_order_release);
  bool again = false;
  for (const Shared& sock : Remotes()) {
    sock->tx_latch.lock();
    sock->rx_latch.lock();
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && sock->lane_kind_ == lane::Kind::kRdma) {
      if (sock->stream_->Probe()) {
        again = true;
      } else {
        static_cast<lane::rdma::RdmaLane*>(sock->lane_.get())
            ->OnNextPost(&ProbeSoon);
      }
      sock->HandleChanges();
    }
    sock->rx_latch.unlock();
    sock->tx_latch.unlock();
  }
  if (again) ProbeSoon();
}

bool Sock::RoomForRemote() {
  const std::uint32_t most = base::GetConfig().max_qps;
  if (remote_count.load(std::memory_order_relaxed) < most) return true;
  const std::uint64_t now = base::NowNs();
  const std::uint64_t bytes = tx_raw_.load(std::memory_order_relaxed) +
                              rx_raw_.load(std::memory_order_relaxed);
  // Bytes a second since it was last told that there is no room.
  const std::uint64_t rate =
      remote_.looked_ns == 0
          ? 0
          : (bytes - std::min(bytes, remote_.looked_bytes)) * 1'000'000 /
                std::max<std::uint64_t>(1, (now - remote_.looked_ns) / 1000);
  remote_.looked_ns = now;
  remote_.looked_bytes = bytes;
  std::uint64_t last = last_eviction_ns.load(std::memory_order_relaxed);
  if (now - last >= kBetweenEvictionsNs &&
      last_eviction_ns.compare_exchange_strong(last, now)) {
    if (Conductor* conductor = Conductor::IfRunning()) {
      conductor->Post([rate] { EvictColdest(rate); });
    }
  }
  return false;
}

// On the conductor thread.
void Sock::EvictColdest(std::uint64_t newcomer) {
  Critical critical;
  const std::uint64_t now = base::NowNs();
  Sock* coldest = nullptr;
  std::uint64_t coldest_rate = 0;
  const std::vector<Shared> all = Remotes();
  for (const Shared& sock : all) {
    sock->tx_latch.lock();
    sock->rx_latch.lock();
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr &&
        now - sock->remote_.since_ns >= kResidencyNs) {
      const std::uint64_t bytes =
          sock->stream_->tx_off() + sock->stream_->rx_off();
      const std::uint64_t rate =
          (bytes - sock->remote_.looked_bytes) * 1'000'000 /
          std::max<std::uint64_t>(1, (now - sock->remote_.looked_ns) / 1000);
      // A look over too short a time would take a pause for the end.
      if (now - sock->remote_.looked_ns >= kResidencyNs) {
        sock->remote_.looked_ns = now;
        sock->remote_.looked_bytes = bytes;
      }
      if (coldest == nullptr || rate < coldest_rate) {
        coldest = sock.get();
        coldest_rate = rate;
      }
    }
    sock->rx_latch.unlock();
    sock->tx_latch.unlock();
  }
  if (coldest == nullptr ||
      (coldest_rate != 0 && newcomer / kHotter < coldest_rate)) {
    return;
  }
  RCSOCK_LOG(2, "fd %d: %llu bytes/s: makes room", coldest->fd(),
             static_cast<unsigned long long>(coldest_rate));
  coldest->tx_latch.lock();
  coldest->rx_latch.lock();
  if (coldest->mode() == Mode::kEngine && coldest->stream_ != nullptr) {
    coldest->stream_->Demote(Reason::kBudget, false);
    coldest->stream_->Progress(true);
    coldest->HandleChanges();
  }
  coldest->rx_latch.unlock();
  coldest->tx_latch.unlock();
}

void Sock::LeaveRemoteLanes(std::uint64_t deadline_ns) {
  Critical critical;
  if (remote_count.load(std::memory_order_relaxed) == 0 ||
      Conductor::IfRunning() == nullptr) {
    return;
  }
  const std::vector<Shared> leaving = Remotes();
  for (const Shared& sock : leaving) {
    sock->tx_latch.lock();
    sock->rx_latch.lock();
    if (sock->mode() == Mode::kEngine && sock->stream_ != nullptr &&
        sock->lane_ != nullptr && sock->stream_->Unacked() > 0) {
      sock->stream_->Demote(Reason::kPolicy, false);
      sock->stream_->Progress(true);
      sock->HandleChanges();
    }
    sock->rx_latch.unlock();
    sock->tx_latch.unlock();
  }
  for (const Shared& sock : leaving) {
    for (;;) {
      sock->tx_latch.lock();
      sock->rx_latch.lock();
      const bool owed = sock->mode() == Mode::kEngine &&
                        sock->stream_ != nullptr && !sock->finished_ &&
                        sock->stream_->tx() != stream::Tx::kRaw &&
                        sock->stream_->Unacked() > 0;
      sock->rx_latch.unlock();
      sock->tx_latch.unlock();
      if (!owed || base::NowNs() >= deadline_ns) break;
      timespec brief{0, 100'000};  // the conductor reads the peer's answer
      ::nanosleep(&brief, nullptr);
    }
  }
  for (const Shared& sock : leaving) sock->FlushAtExit(deadline_ns);
}

}  // namespace rcsock::posix
