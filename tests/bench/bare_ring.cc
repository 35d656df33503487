// What the machine itself can do: bulk data between two pinned processes
// through a ring in shared memory, copied in by the writer and out by the
// reader.  No rcsock, no sockets, no sleep.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/bench/options.h"

namespace {

struct Control {
  alignas(128) std::atomic<std::uint64_t> tail;  // bytes written
  alignas(128) std::atomic<std::uint64_t> head;  // bytes read
};
constexpr std::uint64_t kEnd = 1ULL << 63;  // in tail: no more will come

class Ring {
 public:
  Ring(Control* control, char* data, std::size_t capacity, std::size_t chunk)
      : control_(control), data_(data), capacity_(capacity), chunk_(chunk) {}

  // Copies in all of `from`, in steps of at most a chunk, so that the reader
  // can begin before the writer is done.
  void Write(const char* from, std::size_t size) {
    std::uint64_t tail = control_->tail.load(std::memory_order_relaxed);
    while (size > 0) {
      std::size_t room;
      do {
        room =
            capacity_ - (tail - control_->head.load(std::memory_order_acquire));
      } while (room == 0);
      const std::size_t at = tail % capacity_;
      const std::size_t n = std::min({size, room, chunk_, capacity_ - at});
      std::memcpy(data_ + at, from, n);
      tail += n;
      control_->tail.store(tail, std::memory_order_release);
      from += n;
      size -= n;
    }
  }
  void End() { control_->tail.fetch_or(kEnd, std::memory_order_release); }

  // Copies out what there is, at most `size`; 0 at the end.
  std::size_t Read(char* to, std::size_t size) {
    const std::uint64_t head = control_->head.load(std::memory_order_relaxed);
    std::uint64_t tail;
    do {
      tail = control_->tail.load(std::memory_order_acquire);
    } while (tail == head);
    tail &= ~kEnd;
    const std::size_t at = head % capacity_;
    const std::size_t n = std::min({size, tail - head, chunk_, capacity_ - at});
    std::memcpy(to, data_ + at, n);
    control_->head.store(head + n, std::memory_order_release);
    return n;
  }

 private:
  Control* const control_;
  char* const data_;
  const std::size_t capacity_;
  const std::size_t chunk_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Bulk data through a two-copy ring"};
  std::size_t buffer = 128 << 10;
  std::size_t capacity = 512 << 10;
  std::size_t chunk = 128 << 10;
  double seconds = 1;
  app.add_option("--buffer", buffer, "bytes of each end's own buffer")
      ->check(CLI::Range(1, 16 << 20))
      ->capture_default_str();
  app.add_option("--ring", capacity, "bytes of the ring")
      ->check(CLI::Range(1, 64 << 20))
      ->capture_default_str();
  app.add_option("--chunk", chunk, "bytes of the largest single copy")
      ->check(CLI::Range(1, 64 << 20))
      ->capture_default_str();
  app.add_option("--seconds", seconds)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  void* memory =
      ::mmap(nullptr, sizeof(Control) + capacity, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) bench::Die("mmap");
  auto* control = new (memory) Control{};
  Ring ring(control, static_cast<char*>(memory) + sizeof(Control), capacity,
            chunk);
  std::vector<char> data(buffer, 'x');

  const pid_t child = ::fork();
  if (child < 0) bench::Die("fork");
  if (child == 0) {
    bench::Pin(1);
    while (ring.Read(data.data(), buffer) > 0) {
    }
    ::_exit(0);
  }
  bench::Pin(0);
  const auto write_for = [&](std::int64_t ns) {
    const std::int64_t end = bench::NowNs() + ns;
    std::uint64_t bytes = 0;
    while (bench::NowNs() < end) {
      ring.Write(data.data(), buffer);
      bytes += buffer;
    }
    return bytes;
  };
  const auto ns = static_cast<std::int64_t>(seconds * 1e9);
  write_for(ns / 10);  // to warm up
  const std::int64_t start = bench::NowNs();
  const std::uint64_t bytes = write_for(ns);
  ring.End();
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) {
    bench::Die("child");
  }
  const double took = static_cast<double>(bench::NowNs() - start) * 1e-9;
  std::printf(
      "{\"bench\":\"bare_ring\",\"buffer\":%zu,\"ring\":%zu,\"chunk\":%zu,"
      "\"bytes_per_s\":%.0f}\n",
      buffer, capacity, chunk, static_cast<double>(bytes) / took);
  return 0;
}
