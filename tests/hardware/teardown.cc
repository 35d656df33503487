// usage: teardown server PORT [--threads N]
//        teardown client ADDRESS PORT [--connections N] [--threads N]
//                 [--settle MS] [--limit SECONDS]
//
// Connections that end while bytes flow both ways.  An unmodified program: a
// thread for each connection at a time, nonblocking sockets, poll.
//
// The client makes N connections.  On each, both ends send a sequence of bytes
// that is made from the connection's number, and check each byte that comes.
// Three of four go on until TCP is silent, which is when a lane carries the
// bytes, and some more; at most for --settle milliseconds.  Every fourth ends
// after a moment, so that it ends while a lane is being made.  How, its number
// says:
//
//   orderly   the client shuts down for writing, and must get all that is owed
//   closed    the client closes; bytes are unread at both ends
//   reset     the client closes with SO_LINGER 0
//   left      the server closes, when told by a byte of the stream
//   dropped   the server closes with SO_LINGER 0, told in that way
//
// A wrong byte, an orderly end that is none, and a failed connect are errors.
// After --limit seconds no more are made.  The client prints one line of JSON,
// and tells the server to print its own.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

enum class Way : std::uint8_t { kOrderly, kClosed, kReset, kLeft, kDropped };
constexpr std::uint32_t kWays = 5;
constexpr std::array<const char*, kWays> kWayNames{"orderly", "closed", "reset",
                                                   "left", "dropped"};

// The client's stream begins with a header, and then every kCommandAt-th byte
// tells the server whether to go on.
constexpr std::size_t kHeader = 4;
constexpr std::uint32_t kEnd = 0xffffffff;  // no connection's number
constexpr std::uint64_t kCommandAt = 4096;
constexpr std::uint8_t kGoOn = 0xa0;
constexpr std::uint8_t kClose = 0xa1;
constexpr std::uint8_t kDrop = 0xa2;
constexpr std::uint32_t kBack = 0x80000000;  // the server's sequences

constexpr std::uint64_t kAhead = 128 << 10;  // that may be unanswered
constexpr std::uint64_t kSilent = 64 << 10;  // without a segment of TCP
constexpr std::size_t kBuffer = 64 << 10;
constexpr int kPatience = 30'000;  // ms without anything: an error
constexpr int kMoment = 20;        // ms, at most, of those that end early

std::uint64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

std::uint64_t Mix(std::uint64_t x) {
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ x >> 32;
}

std::uint8_t Byte(std::uint32_t id, std::uint64_t at) {
  const std::uint64_t x =
      Mix((at >> 3) * 0x9e3779b97f4a7c15u + id * 0xd1342543de82ef95u);
  return static_cast<std::uint8_t>(x >> (8 * (at & 7)));
}

void Set(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

void CloseWith(int fd, bool reset) {
  if (reset) {
    const linger now{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  ::close(fd);
}

// Data segments that the kernel's TCP has sent for this connection.
std::uint32_t Segments(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  return info.tcpi_data_segs_out;
}

struct Counts {
  std::atomic<std::uint64_t> connections{0};
  std::atomic<std::uint64_t> on_lane{0};      // TCP was silent
  std::atomic<std::uint64_t> not_on_lane{0};  // ... not within --settle
  std::atomic<std::uint64_t> early{0};
  std::atomic<std::uint64_t> bytes{0};  // received
  std::atomic<std::uint64_t> wrong_bytes{0};
  std::atomic<std::uint64_t> failed_connects{0};
  std::atomic<std::uint64_t> unclean_ends{0};
  std::atomic<std::uint64_t> stuck{0};
  std::array<std::atomic<std::uint64_t>, kWays> ways{};
  std::array<std::atomic<std::uint64_t>, 4> ends{};  // End
};
Counts counts;

std::uint64_t Errors() {
  return counts.wrong_bytes + counts.failed_connects + counts.unclean_ends +
         counts.stuck;
}

// How a connection's traffic came to its end.
enum class End : std::uint8_t { kAsked, kEof, kReset, kOther };

void Print(const char* role, std::uint64_t took_ms) {
  std::printf("{\"role\":\"%s\",\"connections\":%llu,\"seconds\":%.3f", role,
              static_cast<unsigned long long>(counts.connections),
              static_cast<double>(took_ms) / 1000);
  const auto field = [](const char* name, std::uint64_t value) {
    std::printf(",\"%s\":%llu", name, static_cast<unsigned long long>(value));
  };
  if (role[0] == 'c') {
    field("on_lane", counts.on_lane);
    field("not_on_lane", counts.not_on_lane);
    field("early", counts.early);
    for (std::size_t i = 0; i < kWays; ++i) field(kWayNames[i], counts.ways[i]);
  }
  field("ended_by_eof", counts.ends[static_cast<std::size_t>(End::kEof)]);
  field("ended_by_reset", counts.ends[static_cast<std::size_t>(End::kReset)]);
  field("bytes", counts.bytes);
  field("wrong_bytes", counts.wrong_bytes);
  field("failed_connects", counts.failed_connects);
  field("unclean_ends", counts.unclean_ends);
  field("stuck", counts.stuck);
  std::printf("}\n");
  std::fflush(stdout);
}

End EndOf(int error) {
  if (error == ECONNRESET || error == EPIPE) return End::kReset;
  std::fprintf(stderr, "teardown: %s\n", std::strerror(error));
  return End::kOther;
}

// --- The server's end

class Served {
 public:
  explicit Served(int fd) : fd_(fd) {}
  // False: this was the last connection of all.
  bool Run() {
    std::uint8_t header[kHeader];
    if (::recv(fd_, header, kHeader, MSG_WAITALL) != kHeader) {
      ::close(fd_);
      return true;
    }
    std::memcpy(&id_, header, kHeader);
    if (id_ == kEnd) {
      ::close(fd_);
      return false;
    }
    ++counts.connections;
    ::fcntl(fd_, F_SETFL, O_NONBLOCK);
    End end = Traffic();
    ++counts.ends[static_cast<std::size_t>(end)];
    CloseWith(fd_, drop_);
    return true;
  }

 private:
  End Traffic() {
    std::vector<std::uint8_t> in(kBuffer);
    std::vector<std::uint8_t> out(kBuffer);
    bool eof = false;
    for (;;) {
      while (sent_ < received_) {
        const std::size_t n = static_cast<std::size_t>(
            std::min<std::uint64_t>(out.size(), received_ - sent_));
        for (std::size_t i = 0; i < n; ++i)
          out[i] = Byte(id_ | kBack, sent_ + i);
        const ssize_t r = ::send(fd_, out.data(), n, MSG_NOSIGNAL);
        if (r < 0 && errno == EAGAIN) break;
        if (r < 0) return EndOf(errno);
        sent_ += static_cast<std::uint64_t>(r);
      }
      if (eof && sent_ == received_) return End::kEof;
      pollfd wait{fd_, static_cast<short>(eof ? 0 : POLLIN), 0};
      if (sent_ < received_) wait.events |= POLLOUT;
      if (::poll(&wait, 1, kPatience) == 0) {
        ++counts.stuck;
        return End::kOther;
      }
      if (eof) continue;
      const ssize_t r = ::recv(fd_, in.data(), in.size(), 0);
      if (r < 0 && errno == EAGAIN) continue;
      if (r < 0) return EndOf(errno);
      if (r == 0) {
        eof = true;
        continue;
      }
      counts.bytes += static_cast<std::uint64_t>(r);
      for (ssize_t i = 0; i < r; ++i, ++received_) {
        const std::uint8_t byte = in[static_cast<std::size_t>(i)];
        if (received_ % kCommandAt == 0) {
          if (byte == kGoOn) continue;
          drop_ = byte == kDrop;
          if (drop_ || byte == kClose) return End::kAsked;
        } else if (byte == Byte(id_, received_)) {
          continue;
        }
        std::fprintf(stderr, "teardown: connection %u: byte %llu is wrong\n",
                     id_, static_cast<unsigned long long>(received_));
        ++counts.wrong_bytes;
        return End::kOther;
      }
    }
  }

  const int fd_;
  std::uint32_t id_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t sent_ = 0;
  bool drop_ = false;
};

int Serve(const char* port, int threads) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_INET6;  // both families
  addrinfo* found = nullptr;
  if (::getaddrinfo(nullptr, port, &hints, &found) != 0) return 1;
  const int listener = ::socket(found->ai_family, SOCK_STREAM, 0);
  Set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
  Set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(listener, found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener, 4096) != 0) {
    std::perror("teardown: listen");
    return 1;
  }
  ::freeaddrinfo(found);
  const std::uint64_t start = NowMs();
  std::atomic<bool> over{false};
  std::vector<std::thread> all;
  all.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      while (!over) {
        const int fd = ::accept(listener, nullptr, nullptr);
        if (fd < 0) {
          if (errno == EINVAL) return;  // shut down
          continue;
        }
        Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        if (!Served(fd).Run()) {
          over = true;
          ::shutdown(listener, SHUT_RD);
        }
      }
    });
  }
  for (std::thread& one : all) one.join();
  Print("server", NowMs() - start);
  return Errors() == 0 ? 0 : 1;
}

// --- The client's

class Made {
 public:
  Made(int fd, std::uint32_t id, std::uint64_t settle_ms)
      : fd_(fd),
        id_(id),
        way_(static_cast<Way>(id % kWays)),
        random_(Mix(id * 0x9e3779b97f4a7c15u + 1)) {
    // Every fourth of each way.
    early_ = id / kWays % 4 == 3;
    until_ = NowMs() + (early_ ? random_ % (kMoment + 1) : settle_ms);
  }

  void Run() {
    if (::send(fd_, &id_, kHeader, MSG_NOSIGNAL) != kHeader) {
      ++counts.unclean_ends;
      ::close(fd_);
      return;
    }
    ::fcntl(fd_, F_SETFL, O_NONBLOCK);
    silent_since_ = Segments(fd_);
    const End end = Traffic();
    ++counts.ends[static_cast<std::size_t>(end)];
    ++counts.ways[id_ % kWays];
    ++(early_ ? counts.early : silent_ ? counts.on_lane : counts.not_on_lane);
    const bool theirs = way_ == Way::kLeft || way_ == Way::kDropped;
    const bool right = way_ == Way::kOrderly
                           ? end == End::kEof && sent_ == received_
                       : theirs ? end == End::kEof || end == End::kReset
                                : end == End::kAsked;
    if (!right && end != End::kOther) {
      std::fprintf(stderr,
                   "teardown: connection %u (%s): end %d, %llu of %llu bytes\n",
                   id_, kWayNames[id_ % kWays], static_cast<int>(end),
                   static_cast<unsigned long long>(received_),
                   static_cast<unsigned long long>(sent_));
    }
    if (!right) ++counts.unclean_ends;
    CloseWith(fd_, way_ == Way::kReset);
  }

 private:
  // A number that is the connection's next.
  std::uint64_t Next() { return random_ = Mix(random_ + 0x9e3779b97f4a7c15u); }

  // Whether it is time to end.  Looks now and then at what TCP does: what has
  // been answered by then was sent since the last look.
  bool Due() {
    if (over_) return true;
    if (received_ >= looked_at_ + kSilent) {
      const std::uint32_t segments = Segments(fd_);
      if (segments == silent_since_) {
        if (silent_ && received_ >= lane_at_ + extra_) over_ = true;
        if (!silent_) {
          lane_at_ = received_;
          extra_ = Next() % (256 << 10);
        }
        silent_ = true;
      }
      silent_since_ = segments;
      looked_at_ = sent_;
    }
    if (NowMs() >= until_) over_ = true;
    return over_;
  }

  void Fill(std::vector<std::uint8_t>* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t at = sent_ + i;
      (*out)[i] = Byte(id_, at);
      if (at % kCommandAt != 0) continue;
      std::uint8_t command = kGoOn;
      if (over_ && way_ == Way::kLeft) command = kClose;
      if (over_ && way_ == Way::kDropped) command = kDrop;
      (*out)[i] = command;
    }
  }

  End Traffic() {
    std::vector<std::uint8_t> in(kBuffer);
    std::vector<std::uint8_t> out(kBuffer);
    bool shut = false;
    for (;;) {
      if (Due() && !shut) {
        if (way_ == Way::kClosed || way_ == Way::kReset) {
          // Some of what is sent is unread there, some of the answer here.
          return End::kAsked;
        }
        if (way_ == Way::kOrderly) {
          if (::shutdown(fd_, SHUT_WR) != 0) return EndOf(errno);
          shut = true;
        }
      }
      while (!shut && sent_ < received_ + kAhead) {
        const std::size_t n = 1 + Next() % out.size();
        Fill(&out, n);
        const ssize_t r = ::send(fd_, out.data(), n, MSG_NOSIGNAL);
        if (r < 0 && errno == EAGAIN) break;
        if (r < 0) return EndOf(errno);
        sent_ += static_cast<std::uint64_t>(r);
      }
      pollfd wait{fd_, POLLIN, 0};
      if (!shut && sent_ < received_ + kAhead) wait.events |= POLLOUT;
      if (::poll(&wait, 1, kPatience) == 0) {
        std::fprintf(stderr, "teardown: connection %u (%s) is stuck\n", id_,
                     kWayNames[id_ % kWays]);
        ++counts.stuck;
        return End::kOther;
      }
      const ssize_t r = ::recv(fd_, in.data(), in.size(), 0);
      if (r < 0 && errno == EAGAIN) continue;
      if (r < 0) return EndOf(errno);
      if (r == 0) return End::kEof;
      counts.bytes += static_cast<std::uint64_t>(r);
      for (ssize_t i = 0; i < r; ++i, ++received_) {
        if (in[static_cast<std::size_t>(i)] == Byte(id_ | kBack, received_)) {
          continue;
        }
        std::fprintf(stderr, "teardown: connection %u: byte %llu is wrong\n",
                     id_, static_cast<unsigned long long>(received_));
        ++counts.wrong_bytes;
        return End::kOther;
      }
    }
  }

  const int fd_;
  const std::uint32_t id_;
  const Way way_;
  std::uint64_t random_;
  bool early_ = false;
  bool over_ = false;
  bool silent_ = false;
  std::uint64_t until_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::uint32_t silent_since_ = 0;
  std::uint64_t looked_at_ = 0;  // sent_ at the last look
  std::uint64_t lane_at_ = 0;
  std::uint64_t extra_ = 0;
};

int Connect(const addrinfo& to) {
  const int fd = ::socket(to.ai_family, SOCK_STREAM, 0);
  if (fd < 0 || ::connect(fd, to.ai_addr, to.ai_addrlen) != 0) {
    std::perror("teardown: connect");
    if (fd >= 0) ::close(fd);
    return -1;
  }
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  return fd;
}

int Client(const char* address, const char* port, std::uint32_t connections,
           int threads, std::uint64_t settle_ms, std::uint64_t limit_ms) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address, port, &hints, &found) != 0) return 1;
  const std::uint64_t start = NowMs();
  std::atomic<std::uint32_t> next{0};
  std::mutex said;
  std::vector<std::thread> all;
  all.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&] {
      // What goes wrong that often is no accident.
      while (Errors() < 100 && NowMs() - start < limit_ms) {
        const std::uint32_t id = next++;
        if (id >= connections) return;
        ++counts.connections;
        const int fd = Connect(*found);
        if (fd < 0) {
          ++counts.failed_connects;
          continue;
        }
        Made(fd, id, settle_ms).Run();
        if ((id + 1) % 10'000 == 0) {
          const std::scoped_lock hold(said);
          std::fprintf(stderr, "teardown: %u connections\n", id + 1);
        }
      }
    });
  }
  for (std::thread& one : all) one.join();
  const int last = Connect(*found);
  if (last >= 0) {
    static_cast<void>(::send(last, &kEnd, kHeader, MSG_NOSIGNAL));
    ::close(last);
  }
  ::freeaddrinfo(found);
  Print("client", NowMs() - start);
  return Errors() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<const char*> words;
  std::uint32_t connections = 100'000;
  int threads = 32;
  std::uint64_t settle_ms = 10'000;
  std::uint64_t limit_ms = ~std::uint64_t{0};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      words.push_back(argv[i]);
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    if (word == "--connections") {
      connections = static_cast<std::uint32_t>(std::strtoul(value, nullptr, 0));
    } else if (word == "--threads") {
      threads = std::max(1, std::atoi(value));
    } else if (word == "--settle") {
      settle_ms = std::strtoull(value, nullptr, 0);
    } else if (word == "--limit") {
      limit_ms = 1000 * std::strtoull(value, nullptr, 0);
    } else {
      words.clear();
      break;
    }
  }
  const std::string role = words.empty() ? "" : words[0];
  if (words.size() == 2 && role == "server") return Serve(words[1], threads);
  if (words.size() == 3 && role == "client") {
    return Client(words[1], words[2], connections, threads, settle_ms,
                  limit_ms);
  }
  std::fprintf(
      stderr,
      "usage: teardown server PORT | client ADDRESS PORT, and options\n");
  return 2;
}
