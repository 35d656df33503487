// The server of open_loop, and what both ends have.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/open_loop.h"
#include "tools/rcsock/perf/mark.h"

namespace bench::open_loop {

bool Outbox::Send(int fd, std::string_view bytes) {
  waits_.append(bytes);
  return waits_.size() > bytes.size() || Flush(fd);
}

bool Outbox::Flush(int fd) {
  if (waits_.empty()) return true;
  const ssize_t sent = ::send(fd, waits_.data(), waits_.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN;
  waits_.erase(0, static_cast<std::size_t>(sent));
  return true;
}

namespace {

// What the server is to do with a connection.
enum class Next : std::uint8_t { kGoOn, kEnd, kGreedy };

// Takes requests, and sends their answers.
Next Answer(int fd, Outbox* out) {
  char bytes[16384];
  const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
  if (got < 0) return errno == EAGAIN ? Next::kGoOn : Next::kEnd;
  if (got == 0) return Next::kEnd;
  if (bytes[0] == kGreedyByte) return Next::kGreedy;
  // A request ends with a line feed, wherever the bytes were cut.
  std::string answers;
  for (ssize_t i = 0; i < got; ++i) {
    if (bytes[i] == '\n') answers.append(kRedis.answer);
  }
  return out->Send(fd, answers) ? Next::kGoOn : Next::kEnd;
}

// Milliseconds until a time; -1: 0 stands for none.
int Left(std::int64_t until_ns) {
  if (until_ns == 0) return -1;
  return static_cast<int>(
      std::max<std::int64_t>(0, (until_ns - NowNs()) / 1'000'000));
}

// Makes a child every so often.
class Snapshots {
 public:
  // `set`: the server's epoll set.
  Snapshots(int set, const Options& options)
      : set_(set),
        every_ns_(static_cast<std::int64_t>(options.fork_every * 1e9)),
        uses_(options.child_uses) {
    if (every_ns_ > 0) next_ns_ = NowNs() + every_ns_;
  }
  std::int64_t next_ns() const { return next_ns_; }
  void Look(const std::unordered_map<int, Outbox>& connections) {
    if (next_ns_ == 0 || NowNs() < next_ns_) return;
    next_ns_ += every_ns_;
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const pid_t child = ::fork();
    if (child < 0) Die("fork");
    if (child == 0) {
      if (uses_) Use(connections);
      ::usleep(50'000);
      ::_exit(0);
    }
  }

 private:
  // All of them at once, by the set, and then each of them.
  void Use(const std::unordered_map<int, Outbox>& connections) const {
    epoll_event event;
    char byte;
    (void)!::epoll_wait(set_, &event, 1, 0);
    for (const auto& [fd, out] : connections) {
      (void)!::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    }
  }

  const int set_;
  const std::int64_t every_ns_;
  const bool uses_;
  std::int64_t next_ns_ = 0;
};

// The server reads greedy connections so seldom, and so much then.
constexpr std::int64_t kPauseNs = 300'000'000;
constexpr std::size_t kMostOfGreedy = 4 << 20;

// Reads greedy connections, each of them seldom.
class GreedyReader {
 public:
  void Add(int fd) {
    fds_.push_back(fd);
    if (next_ns_ == 0) next_ns_ = NowNs() + kPauseNs;
  }
  std::int64_t next_ns() const { return next_ns_; }
  // Calls ended(fd) for each connection that is over.
  template <class Ended>
  void Look(Ended&& ended) {
    if (next_ns_ == 0 || NowNs() < next_ns_) return;
    std::erase_if(fds_, [&](int fd) {
      if (Read(fd)) return false;
      ended(fd);
      return true;
    });
    next_ns_ = fds_.empty() ? 0 : NowNs() + kPauseNs;
  }

 private:
  // Returns whether the connection goes on.
  static bool Read(int fd) {
    char bytes[kGreedyPiece];
    for (std::size_t all = 0; all < kMostOfGreedy;) {
      const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
      if (got < 0) return errno == EAGAIN;
      if (got == 0) return false;
      all += static_cast<std::size_t>(got);
    }
    return true;
  }

  std::vector<int> fds_;
  std::int64_t next_ns_ = 0;
};

class Server {
 public:
  Server(int listener, const Options& options)
      : options_(options), listener_(listener), snapshots_(poll_, options) {
    if (poll_ < 0) Die("epoll_create1");
    Register(EPOLL_CTL_ADD, listener, EPOLLIN);
  }

  // Serves until the last connection is over.
  void Run() {
    do {
      epoll_event events[64];
      const int count = ::epoll_wait(poll_, events, 64, Wait());
      if (count < 0 && errno != EINTR) Die("epoll_wait");
      snapshots_.Look(connections_);
      greedy_.Look([this](int fd) { End(fd); });
      for (int i = 0; i < count; ++i) {
        Look(events[i].data.fd, events[i].events);
      }
    } while (!over_);
  }

 private:
  int Wait() const {
    const int snapshot = Left(snapshots_.next_ns());
    const int greedy = Left(greedy_.next_ns());
    if (snapshot < 0 || greedy < 0) return std::max(snapshot, greedy);
    return std::min(snapshot, greedy);
  }
  void Register(int operation, int fd, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (::epoll_ctl(poll_, operation, fd, &event) != 0) Die("epoll_ctl");
  }
  void End(int fd) {
    ::close(fd);
    connections_.erase(fd);
    over_ = connections_.empty() && options_.life == 0;
  }
  void Accept() {
    const int one = bench::Accept(listener_);
    if (options_.life > 0) rcsock::perf::Mark();
    SetNoDelay(one);
    SetNonBlocking(one);
    Register(EPOLL_CTL_ADD, one, EPOLLIN);
    connections_[one];
  }
  void Look(int fd, std::uint32_t events) {
    if (fd == listener_) return Accept();
    Outbox* const out = &connections_[fd];
    const bool waited = !out->empty();
    if ((events & EPOLLOUT) != 0 && !out->Flush(fd)) return End(fd);
    switch (Answer(fd, out)) {
      case Next::kGoOn:
        if (waited != !out->empty()) {
          Register(EPOLL_CTL_MOD, fd, EPOLLIN | (out->empty() ? 0u : EPOLLOUT));
        }
        break;
      case Next::kEnd:
        return End(fd);
      case Next::kGreedy:
        Register(EPOLL_CTL_DEL, fd, 0);
        greedy_.Add(fd);
    }
  }

  const Options& options_;
  const int listener_;
  const int poll_ = ::epoll_create1(EPOLL_CLOEXEC);
  std::unordered_map<int, Outbox> connections_;
  Snapshots snapshots_;
  GreedyReader greedy_;
  bool over_ = false;
};

}  // namespace

void Serve(int listener, const Options& options) {
  Server(listener, options).Run();
}

}  // namespace bench::open_loop
