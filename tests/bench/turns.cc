// A client that takes turns with another copy of itself: each has a connection
// and a server of its own, one works while the other sleeps, some milliseconds
// at a time.  Started once plain and once under rcsock, the two see the same
// minute, the same CPUs and the same neighbours, so that a difference of one
// percent shows, which whole runs one after the other do not tell from noise.
// plain_compare starts them.

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"

namespace {

struct Work {
  std::string pattern = "pingpong";
  std::size_t size = 8;
  int count = 256;  // messages of a turn

  bool epoll() const { return pattern == "epoll"; }
};

class Epoll {
 public:
  Epoll(int fd, bool used) {
    if (!used) return;
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      bench::Die("epoll");
    }
  }
  void Wait() {
    if (epoll_ < 0) return;
    epoll_event event;
    while (::epoll_wait(epoll_, &event, 1, -1) < 1) {
      if (errno != EINTR) bench::Die("epoll_wait");
    }
  }

 private:
  int epoll_ = -1;
};

void Exactly(bool whole) {
  if (whole) return;
  errno = ECONNRESET;
  bench::Die("recv");
}

void Serve(int fd, const Work& work) {
  std::vector<char> data(work.size);
  char word = 0;
  Epoll epoll(fd, work.epoll());
  for (;;) {
    if (work.pattern == "send") {
      for (int i = 0; i < work.count; ++i) {
        if (!bench::ReadAll(fd, data.data(), data.size())) return;
      }
      bench::WriteAll(fd, &word, 1);
    } else if (work.pattern == "receive") {
      if (!bench::ReadAll(fd, &word, 1)) return;
      for (int i = 0; i < work.count; ++i) {
        bench::WriteAll(fd, data.data(), data.size());
      }
    } else {
      epoll.Wait();
      if (!bench::ReadAll(fd, data.data(), data.size())) return;
      bench::WriteAll(fd, data.data(), data.size());
    }
  }
}

class Client {
 public:
  Client(int fd, const Work& work)
      : fd_(fd), work_(work), data_(work.size), epoll_(fd, work.epoll()) {}

  // What each message of a turn took.
  double Turn() {
    const std::int64_t start = bench::NowNs();
    if (work_.pattern == "send") {
      for (int i = 0; i < work_.count; ++i) Write();
      Exactly(bench::ReadAll(fd_, data_.data(), 1));
    } else if (work_.pattern == "receive") {
      bench::WriteAll(fd_, data_.data(), 1);
      for (int i = 0; i < work_.count; ++i) Read();
    } else {
      for (int i = 0; i < work_.count; ++i) {
        Write();
        epoll_.Wait();
        Read();
      }
    }
    return static_cast<double>(bench::NowNs() - start) / work_.count;
  }

 private:
  void Write() { bench::WriteAll(fd_, data_.data(), data_.size()); }
  void Read() { Exactly(bench::ReadAll(fd_, data_.data(), data_.size())); }

  const int fd_;
  const Work work_;
  std::vector<char> data_;
  Epoll epoll_;
};

using Word = std::atomic<std::uint32_t>;

// The number of the turn, in a file that both have mapped.
Word* Map(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) bench::Die(file.c_str());
  void* at =
      ::mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) bench::Die("mmap");
  ::close(fd);
  return static_cast<Word*>(at);
}

void AwaitTurn(Word* word, std::uint32_t turn) {
  for (;;) {
    const std::uint32_t now = word->load();
    if (now == turn) return;
    ::syscall(SYS_futex, word, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

void EndTurn(Word* word) {
  word->fetch_add(1);
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"One of two clients that take turns"};
  bench::Ends ends;
  Work work;
  std::string file;
  std::uint32_t index = 0;
  int turns = 100;
  int warm = 20;
  bench::AddEnds(&app, &ends);
  app.add_option("--pattern", work.pattern)
      ->check(CLI::IsMember({"pingpong", "epoll", "send", "receive"}))
      ->capture_default_str();
  app.add_option("--size", work.size, "bytes of a message")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--count", work.count, "messages of a turn")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--turns", turns, "that count")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--warm", warm, "turns before")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--file", file,
                 "4 bytes, zero at first, that both clients map");
  app.add_option("--index", index, "0 begins")->check(CLI::Range(0, 1));
  CLI11_PARSE(app, argc, argv);

  return bench::RunEnds(
      ends, [&](int listener) { Serve(bench::Accept(listener), work); },
      [&](std::uint16_t port) {
        Word alone{0};
        Word* const word = file.empty() ? &alone : Map(file);
        const std::uint32_t step = file.empty() ? 1 : 2;
        Client client(bench::Connect(ends.host, port), work);
        std::vector<double> costs;
        for (int i = 0; i < warm + turns; ++i) {
          AwaitTurn(word, static_cast<std::uint32_t>(i) * step + index);
          const double cost = client.Turn();
          if (i >= warm) costs.push_back(cost);
          EndTurn(word);
        }
        std::printf(
            "{\"bench\":\"turns\",\"pattern\":\"%s\",\"index\":%u,"
            "\"turns\":%zu,\"ns\":[",
            work.pattern.c_str(), index, costs.size());
        for (std::size_t i = 0; i < costs.size(); ++i) {
          std::printf(i == 0 ? "%.1f" : ",%.1f", costs[i]);
        }
        std::printf("]}\n");
      });
}
