// How far the shm lane is from the bare memory under it.
//
// Two pinned processes.  Small: an 8-byte ping-pong through ShmLane against one
// through two cache lines.  Bulk: 128 KiB writes and reads through ShmLane
// against a bare ring with the same two copies and one head and one tail.
// Repetitions are interleaved and medians compared, so that what else runs on
// the machine weighs on both.  Usage: lane_bench [repetitions]

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/latch.h"
#include "lib/lane/shm/link.h"

namespace {

using rcsock::base::CpuRelax;
using rcsock::base::NowNs;
using rcsock::base::UniqueFd;
using rcsock::lane::Lane;
namespace shm = rcsock::lane::shm;

constexpr int kTurns = 2000;
constexpr std::size_t kWrite = 128 * 1024;
constexpr std::size_t kBulk = 32 * 1024 * 1024;
constexpr std::size_t kBareRing = 256 * 1024;
constexpr std::size_t kBareChunk = 16 * 1024;

struct alignas(128) Line {
  std::atomic<std::uint64_t> sequence;
  std::uint64_t payload;
};

struct Bare {
  Line line[2];
  alignas(128) std::atomic<std::uint64_t> head;
  alignas(128) std::atomic<std::uint64_t> tail;
  alignas(128) std::atomic<std::uint32_t> barrier;
  alignas(4096) std::byte ring[kBareRing];
};

// Both processes come here; the second lets both go.
void Barrier(Bare* bare, std::uint32_t* round) {
  ++*round;
  bare->barrier.fetch_add(1);
  while (bare->barrier.load() < 2 * *round) CpuRelax();
}

void BarePingPong(Bare* bare, int side, std::uint64_t from) {
  Line& mine = bare->line[side];
  Line& its = bare->line[1 - side];
  for (std::uint64_t turn = from + 1; turn <= from + kTurns; ++turn) {
    if (side == 0) {
      mine.payload = turn;
      mine.sequence.store(turn, std::memory_order_release);
    }
    while (its.sequence.load(std::memory_order_acquire) != turn) CpuRelax();
    if (its.payload != turn) std::abort();
    if (side == 1) {
      mine.payload = turn;
      mine.sequence.store(turn, std::memory_order_release);
    }
  }
}

void LanePingPong(Lane* lane, int side) {
  std::uint64_t out = 0;
  std::uint64_t in = 0;
  const iovec from{&out, sizeof(out)};
  const iovec to{&in, sizeof(in)};
  for (std::uint64_t turn = 1; turn <= kTurns; ++turn) {
    out = turn;
    if (side == 0) lane->Post(&from, 1, 0, sizeof(out));
    while (lane->Read(&to, 1, 0, sizeof(in), false) == 0) CpuRelax();
    if (in != turn) std::abort();
    if (side == 1) lane->Post(&from, 1, 0, sizeof(out));
  }
}

void BareBulk(Bare* bare, int side, std::byte* buffer) {
  std::uint64_t head = bare->head.load();
  std::uint64_t tail = bare->tail.load();
  for (std::size_t all = 0; all < kBulk; all += kWrite) {
    for (std::size_t at = 0; at < kWrite; at += kBareChunk) {
      if (side == 0) {
        while (head - bare->tail.load(std::memory_order_acquire) >
               kBareRing - kBareChunk) {
          CpuRelax();
        }
        std::memcpy(bare->ring + head % kBareRing, buffer + at, kBareChunk);
        bare->head.store(head += kBareChunk, std::memory_order_release);
      } else {
        while (bare->head.load(std::memory_order_acquire) - tail < kBareChunk) {
          CpuRelax();
        }
        std::memcpy(buffer + at, bare->ring + tail % kBareRing, kBareChunk);
        bare->tail.store(tail += kBareChunk, std::memory_order_release);
      }
    }
  }
}

void LaneBulk(Lane* lane, int side, std::byte* buffer) {
  const iovec iov{buffer, kWrite};
  for (std::size_t all = 0; all < kBulk; all += kWrite) {
    std::size_t done = 0;
    while (done < kWrite) {
      const std::size_t n =
          side == 0 ? lane->Post(&iov, 1, done, kWrite - done)
                    : lane->Read(&iov, 1, done, kWrite - done, false);
      if (n == 0) CpuRelax();
      done += n;
    }
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 101;
  void* memory = ::mmap(nullptr, sizeof(Bare), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* bare = static_cast<Bare*>(memory);
  std::unique_ptr<shm::Link> link = shm::Link::Create();
  UniqueFd segment = link->AddSegment();

  const pid_t child = ::fork();
  const int side = child == 0 ? 1 : 0;
  Pin(side);
  if (side == 1) {
    link = shm::Link::Map(UniqueFd(::dup(link->page_fd())));
    link->MapSegment(std::move(segment));
  }
  std::unique_ptr<Lane> lane = link->OpenLane(0);
  std::vector<std::byte> buffer(kWrite, std::byte{1});
  std::uint32_t round = 0;
  std::vector<double> times[4];
  for (int i = 0; i < repetitions; ++i) {
    for (int what = 0; what < 4; ++what) {
      Barrier(bare, &round);
      const std::uint64_t start = NowNs();
      switch (what) {
        case 0:
          BarePingPong(bare, side, std::uint64_t{kTurns} * i);
          break;
        case 1:
          LanePingPong(lane.get(), side);
          break;
        case 2:
          BareBulk(bare, side, buffer.data());
          break;
        case 3:
          LaneBulk(lane.get(), side, buffer.data());
          break;
      }
      Barrier(bare, &round);
      times[what].push_back(static_cast<double>(NowNs() - start));
    }
  }
  if (side == 1) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const double pings[] = {Median(times[0]) / kTurns, Median(times[1]) / kTurns};
  const double rates[] = {kBulk / Median(times[2]), kBulk / Median(times[3])};
  std::printf("ping-pong   bare %.0f ns, lane %.0f ns: %.2fx\n", pings[0],
              pings[1], pings[1] / pings[0]);
  std::printf("bulk        bare %.2f GB/s, lane %.2f GB/s: %.0f %%\n", rates[0],
              rates[1], 100 * rates[1] / rates[0]);
  return 0;
}
