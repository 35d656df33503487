#include "lib/posix/socket/snapshot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/pin_count.h"
#include "lib/base/spin_budget.h"
#include "lib/base/unique_fd.h"
#include "lib/gpu/memory.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/lane/rdma/target.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

std::uint64_t Get(const std::atomic<std::uint64_t>& value) {
  return value.load(std::memory_order_relaxed);
}

SnapshotCounts Counts(const LaneCounts& counts) {
  return {Get(counts.streams), Get(counts.tx_bytes), Get(counts.rx_bytes)};
}

void FillHead(const Stats& total, std::uint32_t count, SnapshotHead* head) {
  head->magic = kSnapshotMagic;
  head->version = kSnapshotVersion;
  head->head_size = sizeof(SnapshotHead);
  head->stream_size = sizeof(SnapshotStream);
  head->count = count;
  head->monotonic_ns = base::NowNs();
  head->streams = Get(total.streams);
  head->promoted = Get(total.promoted);
  head->demotions = Get(total.demotions);
  head->failovers = Get(total.failovers);
  head->evicted_budget = Get(total.evicted_budget);
  head->evicted_memory = Get(total.evicted_memory);
  head->evicted_idle = Get(total.evicted_idle);
  head->lost_bytes = Get(total.lost_bytes);
  head->in_place_bytes = lane::rdma::InPlaceBytes();
  head->spun_ns = base::spun_ns.load(std::memory_order_relaxed);
  head->spun_well_ns = base::spun_well_ns.load(std::memory_order_relaxed);
  head->gpu_slot_bytes = gpu::counts.slots.load(std::memory_order_relaxed);
  head->gpu_ring_bytes = gpu::counts.rings.load(std::memory_order_relaxed);
  head->gpu_device_bytes = gpu::counts.devices.load(std::memory_order_relaxed);
  head->gpu_passed_bytes = gpu::counts.passed.load(std::memory_order_relaxed);
  head->pinned_bytes = base::PinCount::Total();
  head->pinned_peak = base::PinCount::Peak();
  const base::Config& config = base::GetConfig();
  head->max_qps = config.max_qps;
  head->max_pinned = config.max_pinned;
  head->max_ring = config.max_ring;
  head->lanes[0] = Counts(total.tcp);
  head->lanes[1] = Counts(total.shm);
  head->lanes[2] = Counts(total.rdma);
  constexpr int kRoom = sizeof(SnapshotHead::reasons) / sizeof(std::uint64_t);
  static_assert(static_cast<int>(base::Reason::kCount) <= kRoom);
  for (int r = 0; r < static_cast<int>(base::Reason::kCount); ++r) {
    head->reasons[r] = Get(total.reasons[r]);
  }
}

// Writes through a buffer, and not through a mapping: if memory were full, a
// write to a mapping would raise SIGBUS.
class Writer {
 public:
  explicit Writer(int fd) : fd_(fd) {}
  bool Add(const SnapshotStream& stream) {
    buffer_[used_++] = stream;
    ++count_;
    return used_ < kRoom || Flush();
  }
  bool Flush() {
    const std::size_t length = used_ * sizeof(SnapshotStream);
    const bool ok = WriteAt(buffer_, length, at_);
    at_ += static_cast<off_t>(length);
    used_ = 0;
    return ok;
  }
  bool WriteAt(const void* from, std::size_t length, off_t at) const {
    return length == 0 || ::syscall(SYS_pwrite64, fd_, from, length, at) ==
                              static_cast<long>(length);
  }
  std::uint32_t count() const { return count_; }

 private:
  static constexpr std::size_t kRoom = 64;
  const int fd_;
  off_t at_ = sizeof(SnapshotHead);
  std::size_t used_ = 0;
  std::uint32_t count_ = 0;
  SnapshotStream buffer_[kRoom];
};

}  // namespace

int TakeSnapshot() {
  base::UniqueFd file(base::OpenHigh([&] {
    return ::syscall(SYS_memfd_create, "rcsock-stat",
                     MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }));
  if (!file.ok()) return -1;
  Writer writer(file.get());
  Stats total;
  total.CopyFrom(stats);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    // The parent reports a stream that this process has not used.
    if (const File* at = Entry(fd); at == nullptr || at->Hidden()) {
      continue;
    }
    Sock* sock = LookupSock(fd);
    // Of several descriptors, only the stream's own fd() counts.
    if (sock == nullptr || sock->fd() != fd || !sock->TryRef()) continue;
    SnapshotStream stream{};
    const bool live = LookupSock(fd) == sock && sock->tally().Describe(&stream);
    if (live) sock->tally().Fold(&total);
    sock->Unref();
    if (live && !writer.Add(stream)) return -1;
  }
  SnapshotHead head{};
  FillHead(total, writer.count(), &head);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (!writer.Flush() || !writer.WriteAt(&head, sizeof head, 0) ||
      ::syscall(SYS_fcntl, file.get(), F_ADD_SEALS, kSeals) != 0) {
    return -1;
  }
  return file.release();
}

}  // namespace rcsock::posix
