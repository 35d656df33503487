#include "lib/lane/rdma/domain.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/internal.h"
#include "lib/lane/bell_cpu.h"
#include "lib/lane/rdma/deferred.h"
#include "lib/lane/rdma/layout.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/qp_lane.h"
#include "lib/lane/rdma/queue_bytes.h"
#include "lib/lane/rdma/rdma_poller.h"
#include "lib/lane/rdma/refusal.h"
#include "lib/lane/rdma/user_memory.h"

namespace rcsock::lane::rdma {
namespace {

// What a WQE of 256 bytes has room for, behind its control and address segments
// of 16 bytes each and the length of 4. By BlueFlame mlx5 copies a WQE of that
// size to the device with the doorbell. The device fetches a longer WQE.
constexpr std::uint32_t kInlineMost = 220;

bool IsSoftware(const ibv_device_attr& attr) {
  return attr.vendor_id == verbs::kVendorRxe ||
         attr.vendor_id == verbs::kVendorSiw;
}

// The kernel may place an object's memory at this offset of the context's
// descriptor. Then siw's library takes the object for one without memory
// (SIW_INVAL_UOBJ_KEY), and destroys it. The kernel uses the first gap that is
// large enough. So once a gap begins at this offset, the library can make
// nothing any more.
constexpr std::size_t kSiwForbidden = 0x90000;
// A queue that is made first lies across that offset.
constexpr std::size_t kSiwEntry = 32;
constexpr int kSpacerEntries = 32'768;
static_assert(kSpacerEntries * kSiwEntry > kSiwForbidden);

class DeviceDomain final : public Domain {
 public:
  DeviceDomain(ibv_context* context, Board* board)
      : context_(context), board_(board), iwarp_(verbs::IsIwarp(context)) {}

  ~DeviceDomain() override {
    UserMemory::Forget(pd_.get());
    bool known = false;
    for (auto& poller : pollers_) {
      known = known || poller != nullptr;
      RdmaPoller::Retire(std::move(poller));
    }
    // A retired poller stays, and a thread that drains it looks at deferred_.
    // So deferred_ stays, too.
    if (known) (void)deferred_.release();
  }

  bool Open(verbs::Error* error) {
    ibv_device_attr attr{};
    if (!verbs::Query(context_, &attr, error)) return false;
    limits_.iwarp = iwarp_;
    if (iwarp_) block_bytes_ = kBlockMinIwarp;
    limits_.entries = static_cast<std::uint32_t>(std::max(attr.max_cqe, 0));
    if (attr.max_srq > 0) {
      limits_.receives =
          static_cast<std::uint32_t>(std::max(attr.max_srq_wr, 0));
    }
    limits_.lazy_events = IsSoftware(attr);
    // limits.h says why so many.
    limits_.send_depth = std::min<std::uint32_t>(
        kSendDepth, static_cast<std::uint32_t>(std::max(attr.max_qp_wr, 0)));
    if (attr.vendor_id == verbs::kVendorSiw) {
      verbs::Error none;  // the domain does without it
      spacer_ = verbs::CreateCq(context_, kSpacerEntries, nullptr, &none, 0);
    }
    pd_ = verbs::AllocPd(context_, error);
    if (pd_ == nullptr) return false;
    memory_.emplace(pd_.get(), !limits_.lazy_events);
    // The other half is for new lanes, and the program's own locked memory.
    std::uint64_t most = base::GetConfig().max_pinned;
    rlimit limit{};
    if (most == 0 && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY) {
      most = limit.rlim_cur;
    }
    if (most != 0) memory_->SetBudget(most / 2);
    const std::uint64_t ring = base::GetConfig().max_ring;
    while (ring != 0 && most_ring_ > ring && most_ring_ > kBlockMin) {
      most_ring_ /= 2;
    }
    return true;
  }

  ibv_context* context() const override { return context_; }
  bool iwarp() const override { return iwarp_; }

  std::unique_ptr<RdmaLane> CreateLane(rdma_cm_id* id, int bell,
                                       base::Reason* why,
                                       verbs::Error* error) override;
  void SetRingBytes(std::size_t first, std::size_t most) override {
    const auto round = [](std::size_t bytes) {
      std::size_t to = kBlockMin;
      while (to < bytes && to < kBlockMax) to *= 2;
      return to;
    };
    block_bytes_ = round(first);
    most_ring_ = round(most);
  }
  void SetPace(const Pace& pace) override { pace_ = pace; }
  Pace pace() const override {
    if (pace_) return *pace_;
    return limits_.lazy_events ? kSoftwarePace : kHardwarePace;
  }
  void SetFlushTimer(void (*fn)(void*), void* arg) override {
    deferred_->SetTimer(fn, arg);
  }
  void FlushDeferred() override { deferred_->Flush(); }
  Source* source(int bell) override {
    verbs::Error error;
    return Poller(bell, &error);
  }
  void DeviceLost() override {
    for (auto& poller : pollers_) {
      if (poller != nullptr) poller->LoseAll(base::Reason::kDeviceLost);
    }
  }
  void OnSrqLimit(const ibv_srq* srq) override {
    for (auto& poller : pollers_) {
      if (poller != nullptr) poller->OnSrqLimit(srq);
    }
  }
  Counts counts() const override {
    return {lanes_->load(std::memory_order_relaxed), memory_->pinned()};
  }

 private:
  RdmaPoller* Poller(int bell, verbs::Error* error) {
    // The conductor's bell and the poll bell have pollers of their own. The
    // others share the rest in turn: sets have bells from the first one up, and
    // threads from the last one down.
    constexpr int kOwn = 2;
    const int cpu = BellCpu(bell);
    if (bell >= kPollers) {
      bell = kPollers - 1 - (kBells - 1 - bell) % (kPollers - kOwn);
    }
    auto& poller = pollers_[bell];
    if (poller == nullptr) {
      poller = RdmaPoller::Make(context_, pd_.get(), &*memory_, board_,
                                deferred_.get(), limits_, bell, cpu, error);
    }
    return poller.get();
  }

  // Makes and posts the receives of a QP, on a device that has no shared
  // queues.
  bool OwnReceives(ibv_qp* qp, std::unique_ptr<Receives>* receives,
                   verbs::Error* error);

  // The steps of CreateLane. Each returns false and sets *why if it fails. The
  // caller then gives back what the earlier steps took, except the QP.
  bool Admit(int bell, QpLaneParts* parts, base::Reason* why,
             verbs::Error* error);
  bool TakeMemory(QpLaneParts* parts, base::Reason* why, verbs::Error* error);
  bool OpenQp(rdma_cm_id* id, QpLaneParts* parts, base::Reason* why,
              verbs::Error* error);

  ibv_context* const context_;
  Board* const board_;
  const bool iwarp_;
  Limits limits_;
  std::size_t block_bytes_ = kBlockMin;
  std::size_t most_ring_ = kBlockMax;
  std::optional<Pace> pace_;
  std::uint32_t inline_ask_ =
      kInlineMost;  // or what the device has not refused
  verbs::Cq spacer_;
  verbs::Pd pd_;
  std::optional<Memory> memory_;
  Sink sink_;  // for iWARP
  std::unique_ptr<Deferred> deferred_ = std::make_unique<Deferred>();
  // Fewer pollers than bells: a completion queue and its receives are pinned
  // memory. A thread that drains a poller gives completions of other bells to
  // the board.
  static constexpr int kPollers = 32;
  std::unique_ptr<RdmaPoller> pollers_[kPollers];
  std::shared_ptr<std::atomic<std::uint32_t>> lanes_ =
      std::make_shared<std::atomic<std::uint32_t>>(0);
};

bool DeviceDomain::OwnReceives(ibv_qp* qp, std::unique_ptr<Receives>* receives,
                               verbs::Error* error) {
  receives->reset(new (std::nothrow) Receives);
  if (*receives == nullptr) {
    *error = {"malloc", ENOMEM, {}};
    return false;
  }
  try {
    (*receives)->Open(iwarp_ ? &*memory_ : nullptr, kOwnReceives, kOwnBatch);
  } catch (const std::bad_alloc&) {
    *error = {"malloc", ENOMEM, {}};
    return false;
  }
  return (*receives)->Extend(qp, kOwnReceives, error);
}

bool DeviceDomain::Admit(int bell, QpLaneParts* parts, base::Reason* why,
                         verbs::Error* error) {
  parts->poller = Poller(bell, error);
  if (parts->poller != nullptr) parts->set = parts->poller->Admit(true, error);
  if (parts->set != nullptr) return true;
  *why = !*error                 ? base::Reason::kDeviceFull
         : error->code == EMFILE ? base::Reason::kNoFds
                                 : ReasonOf(*error);
  // A poller that belongs to another bell is better than none.
  verbs::Error none;
  for (int i = 0; i < kPollers && parts->set == nullptr; ++i) {
    parts->poller = pollers_[i].get();
    if (parts->poller != nullptr) {
      parts->set = parts->poller->Admit(false, &none);
    }
  }
  if (parts->set == nullptr) return false;
  *error = {};
  return true;
}

bool DeviceDomain::TakeMemory(QpLaneParts* parts, base::Reason* why,
                              verbs::Error* error) {
  parts->words = parts->poller->sleepers().Get();
  if (parts->words == nullptr) {
    *why = base::Reason::kTooMany;
    return false;
  }
  parts->rx = memory_->Get(block_bytes_, true, error);
  if (!parts->rx) *why = ReasonOf(*error);
  return static_cast<bool>(parts->rx);
}

bool DeviceDomain::OpenQp(rdma_cm_id* id, QpLaneParts* parts, base::Reason* why,
                          verbs::Error* error) {
  CqSet* const set = parts->set;
  ibv_qp_init_attr attr{};
  attr.send_cq = set->cq.get();
  attr.recv_cq = set->cq.get();
  attr.srq = set->shared.srq();
  attr.cap.max_send_wr = limits_.send_depth;
  attr.cap.max_send_sge = 1;
  attr.qp_type = IBV_QPT_RC;
  if (set->shared.srq() == nullptr) {
    attr.cap.max_recv_wr = kOwnReceives;
    attr.cap.max_recv_sge = 1;
  }
  if (!verbs::CreateQp(id, pd_.get(), &attr, &inline_ask_, error) ||
      (set->shared.srq() == nullptr &&
       !OwnReceives(id->qp, &parts->receives, error))) {
    *why = ReasonOf(*error);
    return false;
  }
  if (!limits_.lazy_events) {
    const std::size_t bytes =
        SendQueueBytes(attr.cap.max_send_wr, attr.cap.max_inline_data);
    parts->queue.Count(bytes);
    Memory::NoteLane(bytes);
  }
  parts->id = id;
  // A device may grant more than it was asked for.
  parts->inline_bytes = std::min(attr.cap.max_inline_data, kInlineMost);
  return true;
}

std::unique_ptr<RdmaLane> DeviceDomain::CreateLane(rdma_cm_id* id, int bell,
                                                   base::Reason* why,
                                                   verbs::Error* error) {
  *error = {};
  if (limits_.send_depth < kLeastSendDepth) {
    *why = base::Reason::kDeviceFull;
    return nullptr;
  }
  QpLaneParts parts;
  if (!Admit(bell, &parts, why, error)) return nullptr;
  if (!TakeMemory(&parts, why, error) || !OpenQp(id, &parts, why, error)) {
    if (parts.words != nullptr) parts.poller->sleepers().Put(parts.words);
    parts.poller->Leave(parts.set, true);
    return nullptr;
  }
  parts.domain = shared_from_this();
  parts.memory = &*memory_;
  parts.deferred = deferred_.get();
  parts.lanes = lanes_;
  parts.send_depth = limits_.send_depth;
  parts.most_ring = most_ring_;
  parts.iwarp = iwarp_;
  parts.routed = verbs::IsInfiniBand(context_, id->port_num);
  parts.sink = &sink_;
  parts.reports_last_wqe =
      parts.set->shared.srq() != nullptr && !limits_.lazy_events;
  parts.software = limits_.lazy_events;
  parts.pace = pace();
  // From here on the lane gives everything back.
  std::unique_ptr<QpLane> lane = QpLane::Make(std::move(parts));
  if (lane == nullptr) *why = base::Reason::kNoMemory;
  return lane;
}

}  // namespace

std::shared_ptr<Domain> Domain::Make(ibv_context* context, Board* board,
                                     verbs::Error* error) {
  *error = {};
  try {
    auto domain = std::make_shared<DeviceDomain>(context, board);
    if (!domain->Open(error)) return nullptr;
    return domain;
  } catch (const std::bad_alloc&) {
    error->call = "malloc";
    error->code = ENOMEM;
    return nullptr;
  }
}

}  // namespace rcsock::lane::rdma
