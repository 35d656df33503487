// What waits that sleep take: a thread asks, and another thread answers, over
// connections that have left TCP.
//
// usage: sleeps calls|instructions epoll|poll answers|brief|long|again
//        CONNECTIONS COUNT
//
//   calls         for count_syscalls: bench::Mark() before and behind them
//   instructions  for count_instructions: a breakpoint before them, one behind
//                 each, and one at the end
//   answers       COUNT waits end with an answer, which had to be asked for
//   brief, long   COUNT waits end by their time
//   again         COUNT times two waits have one end, and an answer comes in
//   the
//                 first (epoll alone)
//
// poll has a pipe beside the connections, as most programs have.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/net.h"
#include "tools/rcsock/perf/mark.h"

namespace {

constexpr std::size_t kSize = 32;
constexpr int kMost = 16;  // events of a wait

int SetOf(const std::vector<int>& fds) {
  const int set = ::epoll_create1(0);
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (set < 0 || ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) {
      bench::Die("epoll");
    }
  }
  return set;
}

// Answers until the first connection ends.
void Serve(const std::vector<int>& fds) {
  const int set = SetOf(fds);
  for (;;) {
    epoll_event events[kMost];
    const int count = ::epoll_wait(set, events, kMost, -1);
    for (int i = 0; i < count; ++i) {
      char bytes[kSize];
      if (!bench::ReadAll(events[i].data.fd, bytes, kSize)) return;
      bench::WriteAll(events[i].data.fd, bytes, kSize);
    }
  }
}

class Client {
 public:
  Client(std::vector<int> fds, bool polls)
      : fds_(std::move(fds)), set_(SetOf(fds_)), polls_(polls) {
    int pipe[2];
    if (::pipe(pipe) != 0) bench::Die("pipe");
    for (const int fd : fds_) polled_.push_back({fd, POLLIN, 0});
    polled_.push_back({pipe[0], POLLIN, 0});
  }

  void Ask() {
    const int fd = fds_[next_++ % fds_.size()];
    char bytes[kSize] = {};
    bench::WriteAll(fd, bytes, kSize);
    if (Wait(10'000) != 1) bench::Die("no answer");
    if (!bench::ReadAll(fd, bytes, kSize)) bench::Die("recv");
  }
  void LetTimePass(int ms) {
    if (Wait(ms) != 0) bench::Die("an answer that was not asked for");
  }
  void AskUntilTime() {
    const std::int64_t end = bench::NowNs() + 4'000'000;
    const int fd = fds_[next_++ % fds_.size()];
    char bytes[kSize] = {};
    bench::WriteAll(fd, bytes, kSize);
    // A machine at work may take longer.
    if (WaitUntil(end) != 1 && Wait(10'000) != 1) bench::Die("no answer");
    if (!bench::ReadAll(fd, bytes, kSize)) bench::Die("recv");
    WaitUntil(end);
  }
  // Asks until TCP carries nothing any more.
  void Warm() {
    std::uint64_t before = 0;
    for (int i = 0, still = 0; still < 10; ++i) {
      if (i == 1000) bench::Die("no lane");
      for (std::size_t k = 0; k < 10 * fds_.size(); ++k) Ask();
      ::usleep(1000);
      const std::uint64_t now = TcpBytes();
      still = now == before ? still + 1 : 0;
      before = now;
    }
  }
  void Close() const {
    for (const int fd : fds_) ::shutdown(fd, SHUT_RDWR);
  }

 private:
  int Wait(int ms) {
    if (polls_) return ::poll(polled_.data(), polled_.size(), ms);
    epoll_event events[kMost];
    return ::epoll_wait(set_, events, kMost, ms);
  }
  int WaitUntil(std::int64_t end_ns) const {
    const std::int64_t left =
        std::max<std::int64_t>(0, end_ns - bench::NowNs());
    const timespec time{left / 1'000'000'000, left % 1'000'000'000};
    epoll_event events[kMost];
    return ::epoll_pwait2(set_, events, kMost, &time, nullptr);
  }
  std::uint64_t TcpBytes() const {
    std::uint64_t bytes = 0;
    for (const int fd : fds_) {
      tcp_info info{};
      socklen_t size = sizeof info;
      if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        bench::Die("TCP_INFO");
      }
      bytes += info.tcpi_bytes_acked + info.tcpi_bytes_received;
    }
    return bytes;
  }

  const std::vector<int> fds_;
  const int set_;
  const bool polls_;
  std::vector<pollfd> polled_;
  std::size_t next_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool right = words.size() == 5;
  const long connections = right ? std::atol(argv[4]) : 0;
  const long count = right ? std::atol(argv[5]) : 0;
  if (connections <= 0 || count <= 0) {
    std::fputs(
        "usage: sleeps calls|instructions epoll|poll answers|brief|long|again "
        "CONNECTIONS COUNT\n",
        stderr);
    return 2;
  }
  const bool calls = words[0] == "calls";
  const bool again = words[2] == "again";
  const int ms = words[2] == "answers" ? 0 : words[2] == "brief" ? 1 : 30;
  std::uint16_t port = 0;
  const int listener = bench::Listen("127.0.0.1", &port);
  std::vector<int> ends[2];
  for (long i = 0; i < connections; ++i) {
    ends[0].push_back(bench::Connect("127.0.0.1", port));
    ends[1].push_back(bench::Accept(listener));
  }
  ::close(listener);
  std::thread server(Serve, ends[1]);
  Client client(ends[0], words[1] == "poll");
  client.Warm();
  if (calls) {
    rcsock::perf::Mark();
  } else {
    __asm__ volatile("int3");
  }
  for (long i = 0; i < count; ++i) {
    if (again) {
      client.AskUntilTime();
    } else if (ms == 0) {
      client.Ask();
    } else {
      client.LetTimePass(ms);
    }
    if (!calls) __asm__ volatile("int3");
  }
  if (calls) {
    rcsock::perf::Mark();
  } else {
    __asm__ volatile("int3");
  }
  client.Close();
  server.join();
  return 0;
}
