#include "lib/posix/socket/stats.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>

#include "lib/base/config.h"
#include "lib/base/error_text.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/own_file.h"
#include "lib/base/path.h"
#include "lib/base/pin_count.h"
#include "lib/base/process_latch.h"
#include "lib/base/spin_budget.h"
#include "lib/gpu/memory.h"
#include "lib/lane/rdma/target.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::ProcessLatchOf;

Stats stats;

namespace {

// What WriteStats puts together.  Not on the stack: a thread, a handler or a
// child of clone() may have little stack.
struct Report {
  char path[base::kExpandedPath];
  char program[128];
  char text[4096];
};
constinit base::Latch report_latch;
Report report RC_GUARDED_BY(report_latch);

void Append(char* text, std::size_t capacity, std::size_t* at,
            const char* format, ...) __attribute__((format(printf, 4, 5)));
void Append(char* text, std::size_t capacity, std::size_t* at,
            const char* format, ...) {
  if (*at >= capacity) return;
  va_list arguments;
  va_start(arguments, format);
  const int n = std::vsnprintf(text + *at, capacity - *at, format, arguments);
  va_end(arguments);
  if (n > 0) *at += static_cast<std::size_t>(n);
}

unsigned long long Get(const std::atomic<std::uint64_t>& value) {
  return value.load(std::memory_order_relaxed);
}

unsigned long long Taken(ProcessLatchOf which) {
  return Get(base::process_latches_taken[static_cast<int>(which)]);
}

// The name of the program, in which nothing needs an escape in JSON.
template <std::size_t kSize>
void NameProgram(char (&program)[kSize]) {
  std::strcpy(program, "?");
  const long file = ::syscall(SYS_openat, AT_FDCWD, "/proc/self/comm",
                              O_RDONLY | O_CLOEXEC, 0);
  if (file >= 0) {
    const long r = ::syscall(SYS_read, file, program, kSize - 1);
    ::syscall(SYS_close, file);
    if (r > 0) program[r - 1] = '\0';
  }
  for (char* c = program; *c != '\0'; ++c) {
    if (*c == '"' || *c == '\\' || static_cast<unsigned char>(*c) < 32)
      *c = '?';
  }
}

// Puts the statistics into `report` as JSON.  Returns their length.  No library
// does this: it runs in a program that is ending, perhaps in _exit after a
// fork, where the heap may be unusable.
std::size_t Compose(const Stats& from, long pid) RC_REQUIRES(report_latch) {
  auto& [path, program, text] = report;
  std::size_t n = 0;
  NameProgram(program);
  Append(text, sizeof text, &n,
         "{\"pid\": %ld, \"program\": \"%s\", \"streams\": %llu, "
         "\"promoted\": %llu, \"lanes\": {",
         pid, program, Get(from.streams), Get(from.promoted));
  const struct {
    const char* name;
    const LaneCounts& counts;
  } lanes[] = {{"tcp", from.tcp}, {"shm", from.shm}, {"rdma", from.rdma}};
  for (const auto& lane : lanes) {
    Append(text, sizeof text, &n,
           "%s\"%s\": {\"streams\": %llu, \"tx_bytes\": %llu, "
           "\"rx_bytes\": %llu}",
           &lane == lanes ? "" : ", ", lane.name, Get(lane.counts.streams),
           Get(lane.counts.tx_bytes), Get(lane.counts.rx_bytes));
  }
  Append(text, sizeof text, &n,
         "}, \"demotions\": %llu, \"failovers\": %llu, "
         "\"lost_bytes\": %llu, \"evicted\": "
         "{\"budget\": %llu, \"memory\": %llu, \"idle_rings\": %llu}, "
         "\"in_place_bytes\": %llu, "
         "\"gpu_bytes\": {\"slots\": %llu, \"rings\": %llu, "
         "\"devices\": %llu, \"passed\": %llu}, "
         "\"spun_us\": {\"all\": %llu, \"found\": %llu}, "
         "\"latches\": {\"interest\": %llu, \"conductor\": %llu, "
         "\"tables\": %llu}, "
         "\"pinned\": {\"bytes\": %llu, \"peak\": %llu}, \"reasons\": {",
         Get(from.demotions), Get(from.failovers), Get(from.lost_bytes),
         Get(from.evicted_budget), Get(from.evicted_memory),
         Get(from.evicted_idle),
         static_cast<unsigned long long>(lane::rdma::InPlaceBytes()),
         Get(gpu::counts.slots), Get(gpu::counts.rings),
         Get(gpu::counts.devices), Get(gpu::counts.passed),
         Get(base::spun_ns) / 1'000, Get(base::spun_well_ns) / 1'000,
         Taken(ProcessLatchOf::kInterest), Taken(ProcessLatchOf::kConductor),
         Taken(ProcessLatchOf::kTables),
         static_cast<unsigned long long>(base::PinCount::Total()),
         static_cast<unsigned long long>(base::PinCount::Peak()));
  bool first = true;
  for (int r = 0; r < static_cast<int>(base::Reason::kCount); ++r) {
    const unsigned long long count = Get(from.reasons[r]);
    if (count == 0) continue;
    Append(text, sizeof text, &n, "%s\"%s\": %llu", first ? "" : ", ",
           base::kReasonKeys[r], count);
    first = false;
  }
  Append(text, sizeof text, &n, "}}\n");
  return n < sizeof text ? n : sizeof text - 1;
}

void WriteReport(std::size_t n) RC_REQUIRES(report_latch) {
  const auto& [path, program, text] = report;
  // Beyond this limit write sends SIGXFSZ, which would end the program.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < n) {
    base::Log("can't write statistics to %s: the file size limit", path);
    return;
  }
  // A pipe without a reader, or a full pipe, holds no process back.
  const char* why = nullptr;
  const int out = base::OpenToWrite(path, false, &why);
  if (out < 0) {
    base::Log("can't write statistics to %s: %s", path, why);
    return;
  }
  const long written = base::WriteQuietly(out, text, n);
  if (written != static_cast<long>(n)) {
    base::Log("can't write statistics to %s: %s", path,
              written < 0 ? base::ErrorText(errno) : "no room for all");
  }
  base::CloseRaw(out);
}

}  // namespace

void WriteStats(const Stats& from) {
  const char* pattern = base::GetConfig().stats;
  if (*pattern == '\0') return;
  // A handler that ends the process runs before or after this, and never
  // within.
  const Critical critical;
  const base::LatchGuard hold(report_latch);
  const long pid = ::syscall(SYS_getpid);
  base::ExpandPid(pattern, pid, report.path);
  WriteReport(Compose(from, pid));
}

void Stats::Clear() {
  for (auto* value :
       {&streams, &promoted, &demotions, &failovers, &evicted_budget,
        &evicted_memory, &evicted_idle, &lost_bytes, &tcp.streams,
        &tcp.tx_bytes, &tcp.rx_bytes, &shm.streams, &shm.tx_bytes,
        &shm.rx_bytes, &rdma.streams, &rdma.tx_bytes, &rdma.rx_bytes}) {
    value->store(0, std::memory_order_relaxed);
  }
  for (auto& reason : reasons) reason.store(0, std::memory_order_relaxed);
}

void Stats::CopyFrom(const Stats& other) {
  const auto copy = [](std::atomic<std::uint64_t>& to,
                       const std::atomic<std::uint64_t>& from) {
    to.store(from.load(std::memory_order_relaxed), std::memory_order_relaxed);
  };
  copy(streams, other.streams);
  copy(promoted, other.promoted);
  copy(demotions, other.demotions);
  copy(failovers, other.failovers);
  copy(evicted_budget, other.evicted_budget);
  copy(evicted_memory, other.evicted_memory);
  copy(evicted_idle, other.evicted_idle);
  copy(lost_bytes, other.lost_bytes);
  for (auto lane : {&Stats::tcp, &Stats::shm, &Stats::rdma}) {
    copy((this->*lane).streams, (other.*lane).streams);
    copy((this->*lane).tx_bytes, (other.*lane).tx_bytes);
    copy((this->*lane).rx_bytes, (other.*lane).rx_bytes);
  }
  for (int r = 0; r < static_cast<int>(base::Reason::kCount); ++r) {
    copy(reasons[r], other.reasons[r]);
  }
}

std::unique_ptr<Stats> CountAll() {
  std::unique_ptr<Stats> all(new (std::nothrow) Stats);
  if (all == nullptr) return all;
  all->CopyFrom(stats);
  ForEachSock([&](Sock* sock) { sock->tally().Fold(all.get()); });
  return all;
}

void CountLost(Sock* sock, std::size_t bytes, Stats* in) {
  base::Log("fd %d: %zu bytes read ahead are lost to a program without rcsock",
            sock->fd(), bytes);
  in->lost_bytes.fetch_add(bytes, std::memory_order_relaxed);
  in->reasons[static_cast<int>(base::Reason::kUnreadExec)].fetch_add(
      1, std::memory_order_relaxed);
}

// Another thread of the parent may have held it.
void StatsForkChild() {
  report_latch.Reset();
  base::spun_ns.store(0, std::memory_order_relaxed);
  base::spun_well_ns.store(0, std::memory_order_relaxed);
  for (auto& taken : base::process_latches_taken) {
    taken.store(0, std::memory_order_relaxed);
  }
}

}  // namespace rcsock::posix
