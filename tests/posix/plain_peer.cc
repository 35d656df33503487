// A peer that does not run under rcsock and keeps every byte that it gets: they
// must be the application's, no more and no less, whatever the process at the
// other end tries meanwhile.
//
// usage: plain_peer SHIM

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/posix/under.h"

namespace {

using under::Fail;
using under::Random;

constexpr int kSeeds = 30;               // connections of one run
constexpr std::uint64_t kLongMs = 1300;  // beyond the search for a peer (1 s)

enum class How { kClean, kCut };

struct Step {
  std::size_t out;  // bytes of the application
  std::size_t in;   // bytes of its peer
};

// What both ends of connection `seed` do; known to both.
struct Script {
  std::vector<Step> steps;
  bool app_shuts_first;
  std::size_t tail;  // bytes of the other end, after the half-close
  bool nonblocking;
  bool until_late;  // round trips for kLongMs in place of steps
  // The peer closes when it has moved so many bytes, or never.
  std::uint64_t cut_at;
  bool cut_by_reset;

  Script(std::uint64_t seed, How how) {
    Random random{seed * 1000};
    const auto size = [&random]() -> std::size_t {
      switch (random.Below(20)) {
        case 0:
          return 1 + random.Below(1 << 20);
        case 1:
        case 2:
        case 3:
          return 1 + random.Below(65536);
        case 4:
        case 5:
        case 6:
        case 7:
        case 8:
          return 1 + random.Below(8192);
        case 9:
          return 1;
        default:
          return 1 + random.Below(100);
      }
    };
    std::uint64_t total = 0;
    for (std::uint64_t n = 1 + random.Below(40); n > 0; --n) {
      Step step{};
      const std::uint64_t what = random.Below(5);
      if (what != 0) step.out = size();
      if (what == 0 || what > 2) step.in = size();
      steps.push_back(step);
      total += step.out + step.in;
    }
    app_shuts_first = random.Below(2) == 0;
    tail = random.Below(3) == 0 ? 0 : size();
    nonblocking = random.Below(2) == 0;
    until_late = how == How::kClean && seed % kSeeds == kSeeds - 1;
    cut_at = how == How::kCut ? random.Below(total + 1) : ~std::uint64_t{0};
    cut_by_reset = random.Below(2) == 0;
  }
};

// One end of one connection.
class End {
 public:
  End(int fd, std::uint64_t seed, bool app, const Script& script)
      : fd_(fd),
        app_(app),
        out_seed_(2 * seed + (app ? 0 : 1)),
        in_seed_(2 * seed + (app ? 1 : 0)),
        script_(script),
        random_{seed * 7 + (app ? 1 : 2)} {
    // Where Nagle and delayed acknowledgements meet, a step takes 40 ms.
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (app && script.nonblocking) {
      CHECK_THAT(::fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    }
  }

  // False: the connection has ended early, as it may if the script cuts it.
  bool Run() {
    if (script_.until_late) {
      if (!RoundTrips()) return false;
    } else {
      for (const Step& step : script_.steps) {
        if (!(app_ ? Move(step.out, step.in) : Move(step.in, step.out))) {
          return false;
        }
      }
    }
    const std::size_t tail = script_.until_late ? 100 : script_.tail;
    const bool first = app_ == (script_.app_shuts_first || script_.until_late);
    if (first) {
      if (!Shut()) return false;
      return Move(0, tail) && AtEnd();
    }
    return AtEnd() && Move(tail, 0) && Shut();
  }

  // Everything that came is the other end's, from its first byte on.
  void Check(std::uint64_t sent_by_other) const {
    for (std::size_t i = 0; i < got_.size(); ++i) {
      if (got_[i] == under::ByteAt(in_seed_, i)) continue;
      std::string hex;
      for (std::size_t k = i; k < got_.size() && k < i + 32; ++k) {
        char digits[4];
        std::snprintf(digits, sizeof digits, "%02x ", got_[k]);
        hex += digits;
      }
      Fail("%s got a foreign byte at %zu of %zu: %s",
           app_ ? "the application" : "the plain peer", i, got_.size(),
           hex.c_str());
    }
    if (got_.size() > sent_by_other) {
      Fail("%zu bytes of %llu", got_.size(),
           static_cast<unsigned long long>(sent_by_other));
    }
  }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t got() const { return got_.size(); }

 private:
  bool Cut() const { return script_.cut_at != ~std::uint64_t{0}; }
  // The peer's own will: it closes here.
  bool CutNow() const {
    return !app_ && Cut() && sent_ + got_.size() >= script_.cut_at;
  }
  bool Ended(const char* what, int error) {
    if (!Cut())
      Fail("seed %d: %s: errno %d", static_cast<int>(out_seed_ / 2), what,
           error);
    if (error != 0 && error != ECONNRESET && error != EPIPE) {
      Fail("%s: errno %d", what, error);
    }
    return false;
  }

  // 1: some bytes; 0: not now; -1: over.
  int SendSome(std::size_t* left, int flags) {
    const std::size_t most =
        random_.Below(3) == 0 ? 1 + random_.Below(*left) : *left;
    std::vector<std::uint8_t> bytes(most);
    for (std::size_t i = 0; i < most; ++i) {
      bytes[i] = under::ByteAt(out_seed_, sent_ + i);
    }
    ssize_t n;
    if (flags == 0 && random_.Below(2) == 0) {
      n = ::write(fd_, bytes.data(), most);
    } else if (random_.Below(2) == 0) {
      iovec iov[2] = {{bytes.data(), most / 2},
                      {bytes.data() + most / 2, most - most / 2}};
      msghdr message{};
      message.msg_iov = iov;
      message.msg_iovlen = 2;
      n = ::sendmsg(fd_, &message, flags);
    } else {
      n = ::send(fd_, bytes.data(), most, flags);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n < 0) return Ended("send", errno) ? 1 : -1;
    sent_ += static_cast<std::uint64_t>(n);
    *left -= static_cast<std::size_t>(n);
    return 1;
  }
  int ReceiveSome(std::size_t* left, int flags) {
    const std::size_t most =
        random_.Below(3) == 0 ? 1 + random_.Below(*left) : *left;
    std::vector<std::uint8_t> bytes(most);
    ssize_t n;
    if (flags == 0 && random_.Below(2) == 0) {
      iovec iov[2] = {{bytes.data(), most / 2},
                      {bytes.data() + most / 2, most - most / 2}};
      n = ::readv(fd_, iov, 2);
    } else {
      n = ::recv(fd_, bytes.data(), most, flags);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) return Ended("receive", n < 0 ? errno : 0) ? 1 : -1;
    got_.insert(got_.end(), bytes.begin(), bytes.begin() + n);
    *left -= static_cast<std::size_t>(n);
    return 1;
  }
  bool Move(std::size_t out, std::size_t in) {
    if (CutNow()) return false;
    const bool block = app_ && !script_.nonblocking && (out == 0 || in == 0);
    const int flags = block ? 0 : MSG_DONTWAIT;
    while (out > 0 || in > 0) {
      if (!block) {
        pollfd one{fd_, 0, 0};
        if (out > 0) one.events |= POLLOUT;
        if (in > 0) one.events |= POLLIN;
        ::poll(&one, 1, -1);
      }
      if (out > 0 && SendSome(&out, flags) < 0) return false;
      if (in > 0 && ReceiveSome(&in, flags) < 0) return false;
      if (CutNow()) return false;
    }
    return true;
  }
  bool RoundTrips() {
    if (!app_) {
      // Until the application shuts.
      for (;;) {
        char byte;
        CHECK_THAT(under::Readable(fd_, 10'000));
        if (::recv(fd_, &byte, 1, MSG_PEEK) == 0) return true;
        if (!Move(0, 64) || !Move(64, 0)) return false;
      }
    }
    const std::uint64_t end = under::NowMs() + kLongMs;
    while (under::NowMs() < end) {
      if (!Move(64, 0) || !Move(0, 64)) return false;
    }
    return true;
  }
  bool Shut() {
    if (::shutdown(fd_, SHUT_WR) == 0) return true;
    if (Cut() && errno == ENOTCONN) return false;
    Fail("shutdown: errno %d", errno);
  }
  bool AtEnd() {
    for (;;) {
      std::uint8_t bytes[64];
      pollfd one{fd_, POLLIN, 0};
      ::poll(&one, 1, -1);
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (n == 0) return true;
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n < 0) return Ended("end", errno);
      got_.insert(got_.end(), bytes, bytes + n);
      Check(got_.size());
      Fail("%zd bytes where the end should be", n);
    }
  }

  const int fd_;
  const bool app_;
  const std::uint64_t out_seed_;
  const std::uint64_t in_seed_;
  const Script& script_;
  Random random_;
  std::uint64_t sent_ = 0;
  std::vector<std::uint8_t> got_;
};

// One process under rcsock: all connections of a run, one after the other.
int App(bool client, int port, int report, std::uint64_t first, How how) {
  int listener = -1;
  if (!client) {
    listener = under::Listen(&port);
    CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
  }
  for (std::uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const Script script(seed, how);
    const int fd = client ? under::Connect(port) : under::Accept(listener);
    End end(fd, seed, true, script);
    end.Run();
    end.Check(~std::uint64_t{0});
    ::close(fd);
  }
  return 0;
}

void Run(const std::string& shim, bool app_is_client, bool eager, How how,
         std::uint64_t first) {
  int port = 0;
  const int listener = app_is_client ? under::Listen(&port) : -1;
  int report[2];
  CHECK_THAT(::pipe(report) == 0);
  const pid_t app =
      under::Start(shim,
                   {"app", app_is_client ? "client" : "server",
                    std::to_string(port), std::to_string(report[1]),
                    std::to_string(first), how == How::kCut ? "cut" : "clean"},
                   eager ? std::vector<std::string>{"RCSOCK_PROMOTE_OPS=1"}
                         : std::vector<std::string>{});
  ::close(report[1]);
  if (!app_is_client) {
    CHECK_THAT(::read(report[0], &port, sizeof port) == sizeof port);
  }
  ::close(report[0]);
  std::uint64_t sent = 0;
  std::uint64_t got = 0;
  for (std::uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const Script script(seed, how);
    const int fd =
        app_is_client ? under::Accept(listener) : under::Connect(port);
    End end(fd, seed, false, script);
    const bool whole = end.Run();
    end.Check(~std::uint64_t{0});
    if (!whole && script.cut_by_reset) {
      const linger now{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    ::close(fd);
    sent += end.sent();
    got += end.got();
  }
  if (listener >= 0) ::close(listener);
  under::Finish(app, 10, "the application");

  const under::Stats stats = under::ReadStats(app);
  std::printf("%s, %s, %s: %s", app_is_client ? "client" : "server",
              eager ? "eager" : "default", how == How::kCut ? "cut" : "clean",
              stats.text.c_str());
  std::fflush(stdout);
  const auto expect = [&stats](const char* section, const char* key,
                               std::uint64_t value) {
    if (stats.Get(section, key) != static_cast<long>(value)) {
      Fail("%s %s: not %llu", section, key,
           static_cast<unsigned long long>(value));
    }
  };
  expect("", "promoted", 0);
  expect("", "streams", kSeeds);
  expect("tcp", "streams", kSeeds);
  expect("shm", "tx_bytes", 0);
  expect("shm", "rx_bytes", 0);
  if (how == How::kClean) {
    expect("tcp", "tx_bytes", got);
    expect("tcp", "rx_bytes", sent);
  }
  for (const auto& [reason, count] : stats.reasons) {
    // short_lived: the connection had ended before the search for it began.
    if (reason != "peer_without_rcsock" && reason != "pending" &&
        reason != "short_lived") {
      Fail("%ld streams: %s", count, reason.c_str());
    }
  }
  if (how == How::kClean && stats.reasons.count("peer_without_rcsock") == 0) {
    Fail("the search never ended");
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  ::alarm(60);
  if (argc == 7 && std::strcmp(argv[1], "app") == 0) {
    return App(std::strcmp(argv[2], "client") == 0, std::atoi(argv[3]),
               std::atoi(argv[4]), std::strtoull(argv[5], nullptr, 10),
               std::strcmp(argv[6], "cut") == 0 ? How::kCut : How::kClean);
  }
  if (argc != 2) return 2;
  std::uint64_t first = 0;
  if (const char* text = std::getenv("UNDER_SEED")) {
    first = std::strtoull(text, nullptr, 10) * 8 * kSeeds;
  }
  for (const bool client : {true, false}) {
    for (const bool eager : {true, false}) {
      for (const How how : {How::kClean, How::kCut}) {
        Run(argv[1], client, eager, how, first);
        first += kSeeds;
      }
    }
  }
  return 0;
}
