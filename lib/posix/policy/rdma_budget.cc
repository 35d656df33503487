#include "lib/posix/policy/rdma_budget.h"

#include <algorithm>
#include <atomic>

#include "lib/base/config.h"
#include "lib/base/pin_count.h"
#include "lib/lane/rdma/memory.h"

namespace rcsock::posix {
namespace {

std::atomic<std::uint32_t> remote_count{0};
std::atomic<std::uint32_t> places{0};   // handshakes under way
std::atomic<std::uint32_t> leaving{0};  // listed, and on their way to TCP

// --- Eviction
//
// A stream that finds no room has to be clearly hotter than a stream that has
// it.  A promotion costs both hosts a handshake of milliseconds.  If all are
// equally active, no stream's leaving is worth that.  Both are measured over a
// second at least, and over enough calls that chance does not decide.  A
// resident is measured over about as long a time as the newcomer.
constexpr std::uint32_t kLeastOps = 32;
// The least time between two, since each visits every promoted stream.
constexpr std::uint64_t kBetweenEvictionsNs = 5'000'000;
std::atomic<std::uint64_t> last_eviction_ns{0};
// For a while after an eviction only streams of at least half the newcomer's
// rate may take the place.
constexpr std::uint64_t kAdmissionNs = 2'000'000'000;
std::atomic<std::uint64_t> admission_until_ns{0};
std::atomic<std::uint64_t> admission_rate{0};

// Firewalls forget a silent connection after some minutes.
constexpr std::uint64_t kBeatNs = 60'000'000'000;

}  // namespace

Pace Activity::Take(std::uint64_t now, std::uint64_t bytes, std::uint32_t ops) {
  Pace pace;
  if (looks[0].ns == 0) {
    looks[0] = looks[1] = {now, bytes, ops};
    return pace;
  }
  const std::uint64_t span = now - looks[0].ns;
  if (span < RdmaBudget::kSpanNs) return pace;
  pace.span_ns = span;
  pace.rate =
      (bytes - std::min(bytes, looks[0].bytes)) * 1'000'000 / (span / 1000);
  pace.ops = ops - looks[0].ops;
  if (bytes != looks[1].bytes) active_ns = now;
  if (now - looks[1].ns >= RdmaBudget::kSpanNs) {
    looks[0] = looks[1];
    looks[1] = {now, bytes, ops};
  }
  return pace;
}

void Activity::Begin(std::uint64_t now, std::uint64_t bytes) {
  looks[0] = looks[1] = {now, bytes, 0};
  active_ns = now;
  grown_bytes = bytes;
  grown_ns = now;
}

bool Heartbeat::Due(std::uint64_t now, std::uint64_t tx_off) {
  if (tx_off == off || now - ns < kBeatNs) return false;
  off = tx_off;
  ns = now;
  return true;
}

std::uint64_t RdmaBudget::IdlePinned() {
  return 2 * lane::rdma::Memory::kSmall;
}

bool RdmaBudget::Room() {
  const base::Config& config = base::GetConfig();
  const std::uint32_t under_way = places.load(std::memory_order_relaxed);
  const std::uint32_t used =
      remote_count.load(std::memory_order_relaxed) + under_way;
  const std::uint64_t each = IdlePinned() + lane::rdma::Memory::OfLane();
  return used < config.max_qps &&
         (config.max_pinned == 0 ||
          base::PinCount::Total() + each * (under_way + 1) <=
              config.max_pinned);
}

bool RdmaBudget::MayChallenge(const Pace& mine) {
  return mine.ops >= kLeastOps;
}

bool RdmaBudget::Contested(std::uint64_t now) {
  return now < admission_until_ns.load(std::memory_order_relaxed);
}

bool RdmaBudget::Admits(const Pace& mine) {
  return mine.rate >= admission_rate.load(std::memory_order_relaxed);
}

void RdmaBudget::TakePlace() { places.fetch_add(1, std::memory_order_relaxed); }
void RdmaBudget::LeavePlace() {
  places.fetch_sub(1, std::memory_order_relaxed);
}
void RdmaBudget::Add() { remote_count.fetch_add(1, std::memory_order_relaxed); }
void RdmaBudget::Remove() {
  remote_count.fetch_sub(1, std::memory_order_relaxed);
}
bool RdmaBudget::Any() {
  return remote_count.load(std::memory_order_relaxed) != 0;
}
void RdmaBudget::BeginLeaving() {
  leaving.fetch_add(1, std::memory_order_relaxed);
}
void RdmaBudget::EndLeaving() {
  leaving.fetch_sub(1, std::memory_order_relaxed);
}
bool RdmaBudget::AnyLeaves() {
  return leaving.load(std::memory_order_relaxed) > 0;
}

bool RdmaBudget::MaySearch(std::uint64_t now) {
  std::uint64_t last = last_eviction_ns.load(std::memory_order_relaxed);
  return now - last >= kBetweenEvictionsNs &&
         last_eviction_ns.compare_exchange_strong(last, now);
}

bool RdmaBudget::NoneMustGo() {
  return Room() || leaving.load(std::memory_order_relaxed) >
                       std::min(base::GetConfig().max_qps / 16, 16u);
}

void RdmaBudget::Evicted(std::uint64_t now, const Pace& newcomer) {
  admission_rate.store(newcomer.rate / 2, std::memory_order_relaxed);
  admission_until_ns.store(now + kAdmissionNs, std::memory_order_relaxed);
}

void RdmaBudget::ForkChild() {
  remote_count.store(0, std::memory_order_relaxed);
  places.store(0, std::memory_order_relaxed);
  leaving.store(0, std::memory_order_relaxed);
}

bool Eviction::Coldest(const Pace& pace, std::uint64_t active_ns) {
  // A pause that the newcomer might have made, too, is no end.
  const bool idle =
      pace.span_ns != 0 &&
      now_ - active_ns >= std::max(RdmaBudget::kSpanNs, 2 * newcomer_.span_ns);
  const bool known = idle || (pace.span_ns != 0 && pace.rate != 0 &&
                              pace.span_ns >= newcomer_.span_ns / 2);
  const std::uint64_t rate = idle ? 0 : pace.rate;
  if (!known ||
      (any_ && (rate > rate_ || (rate == rate_ && active_ns >= active_ns_)))) {
    return false;
  }
  any_ = true;
  rate_ = rate;
  active_ns_ = active_ns;
  return true;
}

bool Eviction::Worthwhile() const {
  return rate_ == 0 || newcomer_.rate / RdmaBudget::kHotter >= rate_;
}

}  // namespace rcsock::posix
