#include "lib/lane/rdma/rdma_poller.h"

#include <arpa/inet.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <type_traits>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/no_cancel.h"
#include "lib/lane/rdma/deferred.h"
#include "lib/lane/rdma/layout.h"
#include "lib/lane/rdma/qp_lane.h"
#include "lib/lane/rdma/queue_bytes.h"
#include "lib/lane/rdma/vectors.h"

namespace rcsock::lane::rdma {
namespace {

constexpr int kBatch = 16;
// The first set is small: most threads have few lanes.
constexpr std::uint32_t kFirstSet = 4;
constexpr std::uint32_t kSecondSet = 16;
constexpr std::uint32_t kSpare = SharedReceives::kSpare;
static_assert(SharedReceives::kRefill < Receives::kSlots);
// How many events may wait in the channel. One call then reads them.
constexpr std::uint32_t kEventsKept = 256;

std::size_t Hash(std::uint32_t qp_num) {
  return qp_num * std::size_t{0x9e3779b97f4a7c15u} >> 32;
}

// Destroying a CQ waits until its events have been acknowledged.
void AckEvents(CqSet* set) {
  if (set->unacked == 0) return;
  verbs::calls.ibv_ack_cq_events(set->cq.get(), set->unacked);
  set->unacked = 0;
}

// Whether a CQ tells of one of these completions. What has failed may be of a
// QP that is about to end.
bool MustTell(const CqSet* set, const ibv_wc* wc, int n) {
  return std::any_of(wc, wc + n, [set](const ibv_wc& one) {
    return one.status == IBV_WC_SUCCESS &&
           (!set->solicited || (one.wr_id & kReceive) != 0);
  });
}

}  // namespace

std::unique_ptr<RdmaPoller> RdmaPoller::Make(ibv_context* context, ibv_pd* pd,
                                             Memory* memory, Board* board,
                                             Deferred* deferred,
                                             const Limits& limits, int bell,
                                             int cpu, verbs::Error* error) {
  const std::uint32_t number = VectorOf(context, bell, cpu);
  std::unique_ptr<RdmaPoller> poller(new (std::nothrow) RdmaPoller(
      context, pd, memory, board, deferred, limits, number));
  if (poller == nullptr) return nullptr;
  poller->channel_ = verbs::CreateChannel(context, error);
  if (poller->channel_ == nullptr) return nullptr;
  poller->fd_.store(poller->channel_->fd, std::memory_order_relaxed);
  if (!poller->sleepers_.Open()) {
    *error = {};
    error->call = "eventfd";
    error->code = EMFILE;
    return nullptr;
  }
  return poller;
}

void RdmaPoller::Retire(std::unique_ptr<RdmaPoller> poller) {
  if (poller == nullptr) return;
  RdmaPoller* stays = poller.release();
  // In a list, so that a leak checker sees that the poller is kept on purpose.
  static constinit std::atomic<RdmaPoller*> retired{nullptr};
  stays->next_retired_ = retired.load(std::memory_order_relaxed);
  while (!retired.compare_exchange_weak(stays->next_retired_, stays)) {
  }
  base::LatchGuard hold(stays->latch_);
  stays->fd_.store(-1, std::memory_order_relaxed);
  stays->LetGo();
}

RdmaPoller::~RdmaPoller() { LetGo(); }

void RdmaPoller::LetGo() {
  if (channel_ != nullptr) FetchEvents();
  for (auto& set : sets_) AckEvents(set.get());
  sets_.clear();
  channel_.reset();
  sleepers_.Close();
}

bool RdmaPoller::MakeSet(verbs::Error* error) {
  const std::uint32_t per_lane = limits_.send_depth + kOwnReceives;
  std::uint32_t most = (std::max(limits_.entries, kSpare) - kSpare) / per_lane;
  if (limits_.receives != 0) {
    most = std::min(
        most, (std::max(limits_.receives, kSpare) - kSpare) / kReceivesPerLane);
  }
  std::uint32_t capacity = sets_.empty() ? kFirstSet : kSecondSet;
  for (std::size_t i = 1; i < sets_.size() && capacity < most; ++i) {
    capacity *= 2;
  }
  capacity = std::min(capacity, most);
  if (capacity == 0) return false;
  auto set = std::make_unique<CqSet>();
  set->capacity = capacity;
  set->cq =
      verbs::CreateCq(context_, static_cast<int>(capacity * per_lane + kSpare),
                      channel_.get(), error, number_);
  if (set->cq == nullptr) return false;
  if (!set->shared.Open(pd_, memory_, limits_, capacity, error) ||
      !set->shared.PostFor(1, error)) {
    return false;
  }
  if (!limits_.lazy_events) {
    set->pin.Count(CqBytes(capacity * per_lane + kSpare) +
                   (set->shared.srq() != nullptr
                        ? SrqBytes(capacity * kReceivesPerLane + kSpare)
                        : 0));
  }
  sets_.push_back(std::move(set));
  return true;
}

// A broken CQ goes with its last lane.
void RdmaPoller::DropBrokenSets() {
  std::erase_if(sets_, [](const auto& set) {
    if (!set->broken || set->lanes != 0) return false;
    AckEvents(set.get());
    return true;
  });
}

bool RdmaPoller::HasRoom(CqSet* set) {
  if (set->lanes == 0 && set->shared.losses()) {
    // A new queue has what was lost.
    verbs::Error error;
    if (!set->shared.Renew(&error)) {
      RCSOCK_LOG(1, "rdma: %s: error %d", error.call, error.code);
    }
  }
  return set->lanes < set->capacity && !set->broken && !set->shared.worn();
}

CqSet* RdmaPoller::Admit(bool may_grow, verbs::Error* error) {
  base::LatchGuard hold(latch_);
  CqSet* found = nullptr;
  DropBrokenSets();
  try {
    for (auto& set : sets_) {
      if (found == nullptr && HasRoom(set.get())) found = set.get();
    }
    if (found == nullptr && may_grow && MakeSet(error)) {
      found = sets_.back().get();
    }
  } catch (const std::bad_alloc&) {
  }
  if (found == nullptr || !found->shared.PostFor(found->lanes + 1, error)) {
    return nullptr;
  }
  ++found->lanes;
  return found;
}

void RdmaPoller::Leave(CqSet* set, bool clean) {
  base::LatchGuard hold(latch_);
  --set->lanes;
  if (!clean) set->shared.NoteLost();
}

void RdmaPoller::OnSrqLimit(const ibv_srq* srq) {
  base::LatchGuard hold(latch_);
  for (auto& set : sets_) {
    if (set->shared.srq() == srq) set->shared.NoteLimit();
  }
}

bool RdmaPoller::Add(QpLane* lane, std::uint32_t qp_num) {
  base::LatchGuard hold(latch_);
  const auto put = [](std::vector<Entry>& table, Entry entry) {
    std::size_t at = Hash(entry.qp_num);
    while (table[at & (table.size() - 1)].lane != nullptr) ++at;
    table[at & (table.size() - 1)] = entry;
  };
  if (table_.size() < 2 * (lanes_ + 1)) {
    try {
      std::vector<Entry> larger(std::max<std::size_t>(64, 2 * table_.size()));
      for (const Entry& entry : table_) {
        if (entry.lane != nullptr) put(larger, entry);
      }
      table_.swap(larger);
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  put(table_, {qp_num, lane});
  ++lanes_;
  return true;
}

QpLane* RdmaPoller::Find(std::uint32_t qp_num) const {
  if (table_.empty()) return nullptr;
  for (std::size_t at = Hash(qp_num);; ++at) {
    const Entry& entry = table_[at & (table_.size() - 1)];
    if (entry.lane == nullptr || entry.qp_num == qp_num) return entry.lane;
  }
}

void RdmaPoller::Remove(std::uint32_t qp_num) {
  Settled([&] {
    latch_.AssertHeld();
    const std::size_t mask = table_.size() - 1;
    std::size_t hole = Hash(qp_num) & mask;
    while (table_[hole].lane == nullptr || table_[hole].qp_num != qp_num) {
      hole = (hole + 1) & mask;
    }
    CqSet* const set = table_[hole].lane->set_;
    // An entry that follows moves up, unless its home is between the hole and
    // its place.
    for (std::size_t at = (hole + 1) & mask; table_[at].lane != nullptr;
         at = (at + 1) & mask) {
      const std::size_t home = Hash(table_[at].qp_num) & mask;
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      table_[hole] = table_[at];
      hole = at;
    }
    table_[hole].lane = nullptr;
    --lanes_;
    // The flushes of the QP may have rung, and gone with the QP: then no poll
    // finds them.
    if (set->armed) Fired(set);
    asked_.store(true, std::memory_order_seq_cst);
  });
}

// No thread would be woken for what comes to these lanes.
void RdmaPoller::LoseLanesOf(const CqSet* set) {
  for (const Entry& entry : table_) {
    if (entry.lane != nullptr && entry.lane->set_ == set) {
      entry.lane->Lost(base::Reason::kLaneError);
    }
  }
}

void RdmaPoller::LoseAll(base::Reason reason) {
  base::LatchGuard hold(latch_);
  for (const Entry& entry : table_) {
    if (entry.lane != nullptr) entry.lane->Lost(reason);
  }
}

void RdmaPoller::Arm() {
  armed_.fetch_add(1, std::memory_order_seq_cst);
  if (fd() < 0) return;
  // If no other thread drains, a send that waits for a completion would wait
  // for as long as this thread sleeps.
  deferred_->Flush();
}

void RdmaPoller::Disarm(bool rang) {
  if (rang) asked_.store(true, std::memory_order_seq_cst);
  armed_.fetch_sub(1, std::memory_order_seq_cst);
  if (rang) DrainIfAsked();
}

// A thread that looks for something to receive sends no more for now.
void RdmaPoller::Drain() {
  deferred_->Flush();
  Collect();
}

bool RdmaPoller::DrainToSleep() {
  deferred_->Flush();
  asked_.store(true, std::memory_order_seq_cst);
  return DrainIfAsked(true);
}

void RdmaPoller::Collect() {
  asked_.store(true, std::memory_order_seq_cst);
  DrainIfAsked();
}

bool RdmaPoller::DrainIfAsked(bool to_sleep) {
  bool settled = true;
  while (asked_.load(std::memory_order_seq_cst) && latch_.try_lock()) {
    asked_.store(false, std::memory_order_seq_cst);
    settled = DrainLocked(to_sleep);
    latch_.unlock();
    // The latch is released before asked_ is loaded. A thread that asks stores
    // asked_, then tries the latch. Either it gets the latch, or this thread
    // sees that it has asked.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  return settled;
}

void RdmaPoller::DrainThrottled() {
  const std::uint64_t now = base::Ticks();
  if (now - drained_at_.load(std::memory_order_relaxed) <
      base::ticks_per_us / 10) {
    return;
  }
  drained_at_.store(now, std::memory_order_relaxed);
  Drain();
}

bool RdmaPoller::DrainLocked(bool to_sleep) {
  bool anew = false;
  for (;;) {
    for (auto& set : sets_) {
      while (PollSet(set.get()) == kBatch) {
      }
      if (set->shared.receives().Due()) set->shared.Refill();
    }
    Tell();
    const int sleepers = armed_.load(std::memory_order_seq_cst);
    if (sleepers == 0) return true;
    const auto lost = [](const auto& set) { return !set->armed; };
    if (to_sleep && anew && sleepers == 1 &&
        std::any_of(sets_.begin(), sets_.end(), lost)) {
      return false;
    }
    anew = false;
    if (!limits_.lazy_events) {
      FetchEventsOfFired();
    } else if (events_ >= kEventsKept) {
      FetchEvents();
    }
    for (auto& set : sets_) anew = ArmSet(set.get()) || anew;
    if (anew) continue;
    if (!limits_.lazy_events) {
      for (auto& set : sets_) set->watch.Empty();
    }
    return true;
  }
}

void RdmaPoller::FetchEventsOfFired() {
  const auto fired = [](const auto& set) { return set->fired; };
  if (std::none_of(sets_.begin(), sets_.end(), fired)) return;
  FetchEvents();
  for (auto& set : sets_) {
    if (set->fired && set->watch.owed()) MissEvent(set.get());
  }
}

// The set's event is owed, and not there.
void RdmaPoller::MissEvent(CqSet* set) {
  if (set->broken || !set->watch.Overdue(base::NowNs())) return;
  // The process may have been stopped between its look and the clock.
  FetchEvents();
  if (!set->fired) return;
  if (set->solicited) {
    solicits_ = false;
    return;  // ArmSet arms for all
  }
  RCSOCK_LOG(1, "rdma: %s: a completion queue has lost an event",
             context_->device->name);
  set->broken = true;
  LoseLanesOf(set);
}

// True: the set has to be polled again.
bool RdmaPoller::ArmSet(CqSet* set) {
  bool all = !solicits_ || wants_sent_.load(std::memory_order_seq_cst) != 0;
  const bool widen = all && set->solicited;
  if ((set->armed || set->fired) && !widen) return false;
  const base::NoCancel no_cancel;
  int refused = ibv_req_notify_cq(set->cq.get(), all ? 0 : 1);
  if (refused != 0 && !all) [[unlikely]] {
    // Some devices, such as Microsoft's MANA, arm for all completions only.
    solicits_ = false;
    all = true;
    refused = ibv_req_notify_cq(set->cq.get(), 0);
  }
  if (refused != 0) [[unlikely]] {
    RCSOCK_LOG(1, "rdma: %s: ibv_req_notify_cq: error %d",
               context_->device->name, refused);
    LoseLanesOf(set);
  }
  set->solicited = !all;
  set->watch.Restart();
  if (!set->fired) set->armed = true;
  return true;
}

// Completions have been taken since the CQ was armed, or have gone with their
// QP: the CQ may have fired. A device may also fire for what is not solicited.
void RdmaPoller::Fired(CqSet* set) {
  set->armed = false;
  set->fired = !limits_.lazy_events;
  ++events_;
}

// Called when polling a CQ fails. A provider whose poll fails has taken
// completions, and reports none of them; mlx5, mlx4 and hns do so. The lane
// would take its next message for a lost one.
void RdmaPoller::LoseCompletions(CqSet* set, int error) {
  if (!std::exchange(set->broken, true)) {
    RCSOCK_LOG(1, "rdma: %s: ibv_poll_cq: error %d", context_->device->name,
               error);
  }
  for (const Entry& entry : table_) {
    if (entry.lane != nullptr && entry.lane->set_ == set) {
      entry.lane->AcceptNoMore(base::Reason::kLaneError);
    }
  }
}

int RdmaPoller::PollSet(CqSet* set) {
  ibv_wc wc[kBatch];
  const int n = ibv_poll_cq(set->cq.get(), kBatch, wc);
  if (n == 0) return 0;
  if (set->armed) Fired(set);
  if (n < 0) [[unlikely]] {
    LoseCompletions(set, n);
    return 0;
  }
  if (set->watch.empty() && MustTell(set, wc, n)) set->watch.Came();
  for (int i = 0; i < n; ++i) Handle(set, wc[i]);
  return n;
}

void RdmaPoller::HandleReceive(CqSet* set, QpLane* lane, const ibv_wc& wc) {
  const bool own = set->shared.srq() == nullptr;
  // A lane's own queue has gone with the lane.
  if (own && lane == nullptr) return;
  Receives& receives = own ? *lane->receives_ : set->shared.receives();
  // A device may still report a receive of a queue that has been replaced.
  if (!receives.Has(wc.wr_id)) return;
  const auto slot = static_cast<std::uint32_t>(wc.wr_id);
  std::uint32_t imm = 0;
  const std::byte* bytes = nullptr;
  std::uint32_t length = 0;
  bool good = wc.status == IBV_WC_SUCCESS;
  if (good && limits_.iwarp) {
    good = wc.opcode == IBV_WC_RECV && wc.byte_len >= sizeof(imm) &&
           wc.byte_len <= kSendMost;
    if (good) {
      bytes = receives.At(slot);
      length = wc.byte_len - sizeof(imm);
      std::memcpy(&imm, bytes + length, sizeof(imm));
    }
  } else if (good) {
    good = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
           (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
    imm = wc.imm_data;
  }
  // Before the receive's buffer is given back to the device.
  if (lane != nullptr && good) lane->OnReceive(ntohl(imm), bytes, length);
  if (!own) {
    receives.Used(slot);
    if (receives.Due()) set->shared.Refill();
    if (wc.status == IBV_WC_WR_FLUSH_ERR) return;
  } else if (wc.status == IBV_WC_SUCCESS) {
    // Only after a success: a queue in error would give it back at once.
    receives.Used(slot);
    if (receives.Due()) lane->PostReceives();
  } else if (wc.status == IBV_WC_WR_FLUSH_ERR) {
    // The failed completion says why, or rdma_cm does, for instance where the
    // queue is shared.
    return;
  }
  if (lane != nullptr && !good) lane->OnError(wc.status, true);
}

void RdmaPoller::Handle(CqSet* set, const ibv_wc& wc) {
  QpLane* lane = Find(wc.qp_num);
  if ((wc.wr_id & kReceive) != 0) {
    HandleReceive(set, lane, wc);
    if (lane == nullptr) return;
  } else {
    if (lane == nullptr) return;
    if (wc.status == IBV_WC_SUCCESS) {
      lane->OnSent(wc.wr_id);
    } else {
      lane->OnError(wc.status, false);
    }
  }
  if (!lane->touched_) {
    lane->touched_ = true;
    lane->next_touched_ = touched_;
    touched_ = lane;
  }
}

void RdmaPoller::Tell() {
  while (touched_ != nullptr) {
    QpLane* lane = touched_;
    touched_ = lane->next_touched_;
    lane->touched_ = false;
    lane->Tell();
  }
}

void RdmaPoller::ReadEvent(const ibv_cq* cq) {
  for (auto& set : sets_) {
    if (set->cq.get() != cq) continue;
    set->fired = false;
    set->armed = false;
    set->watch.Restart();
    if (++set->unacked == 64) {
      verbs::calls.ibv_ack_cq_events(set->cq.get(), 64);
      set->unacked = 0;
    }
  }
}

// Fetches the events of the CQs that have fired, or all that are there. Another
// thread about to sleep may have seen an event of another CQ. That CQ counts as
// not armed, so that it is armed and polled once more.
void RdmaPoller::FetchEvents() {
  const base::NoCancel no_cancel;
  const int saved = errno;
  if (limits_.lazy_events) {
    ReadAllEvents();
  } else {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    // Each CQ that has fired has one event. Events of other CQs are fetched
    // later: each look costs a system call.
    while (std::any_of(sets_.begin(), sets_.end(),
                       [](const auto& set) { return set->fired; }) &&
           verbs::calls.ibv_get_cq_event(channel_.get(), &cq, &context) == 0) {
      ReadEvent(cq);
    }
  }
  events_ = 0;
  errno = saved;
}

// This does what ibv_get_cq_event does for one event. The kernel gives one
// event for each piece of a vector, so one call empties the channel.
void RdmaPoller::ReadAllEvents() {
  std::uint64_t events[kEventsKept];  // ib_uverbs_comp_event_desc
  iovec pieces[kEventsKept];
  for (std::uint32_t i = 0; i < kEventsKept; ++i) {
    pieces[i] = {&events[i], sizeof(events[i])};
  }
  long n;
  do {
    n = ::syscall(SYS_readv, channel_->fd, pieces, kEventsKept);
    for (long i = 0; i * static_cast<long>(sizeof(events[0])) < n; ++i) {
      ReadEvent(reinterpret_cast<const ibv_cq*>(events[i]));
    }
  } while (n == static_cast<long>(sizeof(events)));
}

}  // namespace rcsock::lane::rdma
