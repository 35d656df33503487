// Round trips and one-way streams over one or many TCP connections: a plain
// sockets program that also runs under librspreload.  That interposes neither
// epoll nor accept4 nor SOCK_CLOEXEC, so poll and plain flags it is.

#include <linux/tcp.h>  // glibc's tcp_info has no counters of bytes
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include "tests/bench/pattern.h"
#include "tests/bench/sample.h"

namespace {

// Before the measurement small messages go to and fro for a while, as a
// connection has to show traffic before it gets a lane.
constexpr std::size_t kSettleSize = 8;
constexpr int kQuietRounds = 5;
constexpr char kPing = 'p';
constexpr char kGo = 'g';
constexpr std::size_t kDoneSize = 8;

struct Options {
  bench::Ends ends;
  bench::Pattern pattern;
  int settle_ms = 50;
  bool until_off_tcp = false;
  bool rsocket = false;
  int per_port = 1024;
};

// What the connections of one end have in common.
class Wire {
 public:
  explicit Wire(const bench::Pattern& pattern)
      : spin_(pattern.spin), alone_(pattern.connections == 1) {}

  void Add(int fd) { polls_.push_back({fd, POLLIN, 0}); }
  int fd(std::size_t i) const { return polls_[i].fd; }
  std::size_t size() const { return polls_.size(); }

  void Write(std::size_t i, const char* data, std::size_t size) {
    if (!spin_) return bench::WriteAll(fd(i), data, size);
    while (size > 0) {
      const ssize_t n = ::send(fd(i), data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && !TryAgain()) bench::Die("send");
      if (n <= 0) continue;
      data += n;
      size -= static_cast<std::size_t>(n);
    }
  }

  // False at the end of the stream.
  bool Read(std::size_t i, char* data, std::size_t size) {
    if (!spin_) return bench::ReadAll(fd(i), data, size);
    while (size > 0) {
      const ssize_t n = ::recv(fd(i), data, size, MSG_DONTWAIT);
      if (n == 0) return false;
      if (n < 0 && !TryAgain()) bench::Die("recv");
      if (n < 0) continue;
      data += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }

  // Calls `readable` for each connection that is; a single one needs no poll.
  template <typename Readable>
  void Wait(Readable readable) {
    if (alone_) return readable(0);
    const int n = ::poll(polls_.data(), polls_.size(), spin_ ? 0 : -1);
    if (n < 0 && errno != EINTR) bench::Die("poll");
    if (n <= 0) return;
    for (std::size_t i = 0; i < polls_.size(); ++i) {
      if (polls_[i].revents != 0) readable(i);
    }
  }

  // One receive after Wait; -1 if there is nothing after all.
  ssize_t ReadSome(std::size_t i, char* data, std::size_t size) {
    const bool wait = alone_ && !spin_;
    const ssize_t n = ::recv(fd(i), data, size, wait ? 0 : MSG_DONTWAIT);
    if (n < 0 && !TryAgain()) bench::Die("recv");
    return n;
  }

  void Forget(std::size_t i) {
    ::close(polls_[i].fd);
    polls_[i].fd = -1;
  }

 private:
  static bool TryAgain() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  }

  const bool spin_;
  const bool alone_;
  std::vector<pollfd> polls_;
};

class Server {
 public:
  Server(const bench::Pattern& pattern, int listener)
      : pattern_(pattern),
        wire_(pattern),
        buffer_(pattern.oneway() ? bench::kSinkBuffer
                                 : std::max(pattern.size, kSettleSize),
                'x'),
        states_(static_cast<std::size_t>(pattern.connections)) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      wire_.Add(bench::Accept(listener));
    }
  }

  // Until the last connection is closed.
  void Run() {
    std::size_t open = states_.size();
    while (open > 0) {
      wire_.Wait([&](std::size_t i) {
        if (!Receive(i)) {
          wire_.Forget(i);
          --open;
        }
      });
    }
  }

 private:
  struct State {
    bool settled = false;
    std::int64_t sunk = 0;  // bytes of the one-way stream
  };

  bool Receive(std::size_t i) {
    State& state = states_[i];
    const bool sink = state.settled && pattern_.oneway();
    const std::size_t want = sink            ? buffer_.size()
                             : state.settled ? pattern_.size
                                             : kSettleSize;
    const ssize_t n = wire_.ReadSome(i, buffer_.data() + got_, want - got_);
    if (n == 0) return false;
    if (n < 0) return true;
    if (sink) {
      Sink(i, n);
      return true;
    }
    if (got_ != 0 && i != under_way_) {
      std::fprintf(stderr, "two messages at a time\n");
      std::exit(1);
    }
    under_way_ = i;
    got_ += static_cast<std::size_t>(n);
    if (got_ < want) return true;
    got_ = 0;
    wire_.Write(i, buffer_.data(), want);
    if (state.settled) {
      marks_.Next();
    } else if (buffer_[0] == kGo) {
      state.settled = true;
    }
    return true;
  }

  void Sink(std::size_t i, ssize_t n) {
    State& state = states_[i];
    const auto size = static_cast<std::int64_t>(pattern_.size);
    const std::int64_t warm_up = pattern_.WarmUpEach() * size;
    const std::int64_t all = warm_up + pattern_.MeasuredEach() * size;
    const std::int64_t before = state.sunk;
    state.sunk += n;
    if ((before < warm_up && state.sunk >= warm_up) ||
        (before < all && state.sunk >= all)) {
      const char done[kDoneSize] = {};
      wire_.Write(i, done, sizeof done);
      marks_.Next();
    }
  }

  const bench::Pattern pattern_;
  bench::Marks marks_{pattern_};
  Wire wire_;
  // One for all connections, as verbs.cc has it: with one for each, what is
  // measured with many are cold buffers of the program's.
  std::vector<char> buffer_;
  // Of the one message that is under way, and where.
  std::size_t got_ = 0;
  std::size_t under_way_ = 0;
  std::vector<State> states_;
};

class Client {
 public:
  Client(const Options& options, std::uint16_t port)
      : pattern_(options.pattern),
        settle_ns_(options.settle_ms * 1'000'000LL),
        until_off_tcp_(options.until_off_tcp),
        must_be_socket_(!options.rsocket),
        wire_(options.pattern),
        message_(std::max(pattern_.size, kSettleSize), 'x') {
    for (int i = 0; i < pattern_.connections; ++i) {
      wire_.Add(bench::Connect(
          options.ends.host,
          static_cast<std::uint16_t>(port + i / options.per_port)));
    }
  }

  void Run() {
    if (KernelSocket() != must_be_socket_) {
      std::fprintf(stderr, "the descriptor is %s kernel socket\n",
                   must_be_socket_ ? "no" : "a");
      std::exit(1);
    }
    // Paced, so that these bytes stay few beside those that are measured.
    const std::int64_t end = bench::NowNs() + settle_ns_;
    long long before = 0;
    int quiet = 0;
    do {
      Settle(kPing);
      ::usleep(2000);
      if (!until_off_tcp_) continue;
      const long long now = TcpBytes();
      quiet = now == before ? quiet + 1 : 0;
      before = now;
    } while (bench::NowNs() < end && quiet < kQuietRounds);
    Settle(kGo);
    const long long settled = TcpBytes();
    moved_ = 0;
    if (pattern_.oneway()) {
      Stream(pattern_.WarmUpEach());
      bench::Mark();
      const std::int64_t start = bench::NowNs();
      Stream(pattern_.MeasuredEach());
      const std::int64_t took = bench::NowNs() - start;
      bench::Mark();
      bench::PrintOneWay(
          "sockets", pattern_,
          pattern_.MeasuredEach() * static_cast<std::int64_t>(wire_.size()),
          took);
    } else {
      std::size_t next = 0;
      const auto step = [&] {
        Send(next, pattern_.size);
        Expect(next, pattern_.size);
        next = (next + 1) % wire_.size();
      };
      const bench::Cost cost =
          bench::Measure(pattern_.count, step, pattern_.WarmUp(), bench::Mark);
      bench::Mark();
      bench::PrintRoundTrips("sockets", pattern_, cost);
    }
    const long long tcp = TcpBytes();
    std::fprintf(stderr, "tcp_bytes %lld, measured %lld of %lld\n", tcp,
                 tcp - settled, moved_);
    for (std::size_t i = 0; i < wire_.size(); ++i) wire_.Forget(i);
  }

 private:
  // What the kernel's connections have carried in truth, both ways; whoever
  // started us can compare it with what a preload says of itself.
  long long TcpBytes() const {
    long long bytes = 0;
    for (std::size_t i = 0; i < wire_.size(); ++i) {
      tcp_info info{};
      socklen_t length = sizeof info;
      if (::getsockopt(wire_.fd(i), IPPROTO_TCP, TCP_INFO, &info, &length) !=
          0) {
        return -1;
      }
      bytes += static_cast<long long>(info.tcpi_bytes_acked +
                                      info.tcpi_bytes_received);
    }
    return bytes;
  }

  // librspreload falls back to TCP without a word; its own descriptors are
  // those of /dev/null.
  bool KernelSocket() const {
    const std::string path = "/proc/self/fd/" + std::to_string(wire_.fd(0));
    char target[64] = {};
    return ::readlink(path.c_str(), target, sizeof target - 1) > 0 &&
           std::string(target).rfind("socket:", 0) == 0;
  }

  void Settle(char what) {
    message_[0] = what;
    for (std::size_t i = 0; i < wire_.size(); ++i) {
      Send(i, kSettleSize);
      Expect(i, kSettleSize);
    }
  }

  void Send(std::size_t i, std::size_t size) {
    moved_ += static_cast<long long>(size);
    wire_.Write(i, message_.data(), size);
  }

  void Expect(std::size_t i, std::size_t size) {
    moved_ += static_cast<long long>(size);
    if (wire_.Read(i, message_.data(), size)) return;
    errno = ECONNRESET;
    bench::Die("recv");
  }

  // `each` messages on every connection, until the server has them all.
  void Stream(std::int64_t each) {
    for (std::int64_t n = 0; n < each; ++n) {
      for (std::size_t i = 0; i < wire_.size(); ++i) {
        Send(i, pattern_.size);
      }
    }
    for (std::size_t i = 0; i < wire_.size(); ++i) Expect(i, kDoneSize);
  }

  const bench::Pattern pattern_;
  const std::int64_t settle_ns_;
  const bool until_off_tcp_;
  const bool must_be_socket_;
  Wire wire_;
  std::vector<char> message_;
  long long moved_ = 0;  // bytes, both ways
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Round trips and streams over plain sockets"};
  Options options;
  bench::AddEnds(&app, &options.ends);
  bench::AddPattern(&app, &options.pattern);
  app.add_option("--settle-ms", options.settle_ms,
                 "small traffic before the measurement")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--until-off-tcp", options.until_off_tcp,
               "less of it, once nothing of it moves over the kernel's "
               "connections");
  app.add_flag("--rsocket", options.rsocket,
               "fail if the connection is the kernel's after all");
  app.add_option("--per-port", options.per_port,
                 "connect to the next port after so many connections")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  bench::Limit(options.pattern);

  return bench::RunEnds(
      options.ends,
      [&](int listener) {
        bench::SayListening();
        Server server(options.pattern, listener);
        server.Run();
      },
      [&](std::uint16_t port) {
        Client client(options, port);
        client.Run();
      });
}
