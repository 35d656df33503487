// usage: soak server PORT [--connections N]
//        soak client ADDRESS PORT [--connections N] [--bytes B] [--message M]
//             [--active A] [--moves K] [--stay MS] [--pause MS]
//             [--report FILE] [--stop FILE] [--linger FILE] [--whisper MS]
//
// Full-duplex traffic on N connections whose every byte is known beforehand: a
// byte lost, doubled or out of place is seen at once.  An unmodified program of
// nonblocking sockets and epoll.
//
// Each connection has a number, sent by the client first (4 bytes).  The client
// sends messages of M bytes of a sequence made from the number and the offset;
// the server answers each byte with one of another such sequence.  Only A
// connections are active at a time; after each K-th part of the bytes the next
// A are (with --stay, after so many milliseconds).  B is per connection and
// turn.  With --stop the traffic goes on until FILE exists.  --pause: so long
// after each turn.  --linger: after the traffic, while FILE exists, all is
// silent; with --whisper each connection then has a round trip of 64 bytes now
// and then.
//
// --report: a line "bytes N" is rewritten in FILE now and then, so that a
// script can act in mid-transfer.  Exit status 0: every byte was right.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Options {
  bool server = false;
  std::string address;
  std::string port;
  int connections = 1;
  std::uint64_t bytes = 1 << 20;
  std::size_t message = 4096;
  int active = 1 << 30;
  int moves = 1;
  std::string report;
  std::string stop;
  std::string linger;
  int whisper_ms = 0;
  int pause_ms = 0;
  int stay_ms = 0;
};

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "soak: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

std::uint64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

// Byte `at` of sequence `id`.
std::uint8_t Byte(std::uint32_t id, std::uint64_t at) {
  std::uint64_t x = (at >> 3) * 0x9e3779b97f4a7c15u + id * 0xd1342543de82ef95u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 32;
  return static_cast<std::uint8_t>(x >> (8 * (at & 7)));
}

void Fill(std::uint32_t id, std::uint64_t at, std::uint8_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = Byte(id, at + i);
}

bool Check(std::uint32_t id, std::uint64_t at, const std::uint8_t* bytes,
           std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (bytes[i] == Byte(id, at + i)) continue;
    std::fprintf(
        stderr, "soak: connection %u: byte %llu is %02x, should be %02x\n", id,
        static_cast<unsigned long long>(at + i), bytes[i], Byte(id, at + i));
    return false;
  }
  return true;
}

struct Connection {
  int fd = -1;
  std::uint32_t id = 0;
  std::size_t have_id = 0;  // server: bytes of the number that have come
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t target = 0;  // client: bytes to send
  bool out = false;          // EPOLLOUT is asked for
  bool finished = false;     // client: shut down
};

constexpr std::uint32_t kBack = 0x80000000;  // the server's sequences

void Watch(int set, Connection* c, bool out) {
  if (c->out == out) return;
  c->out = out;
  epoll_event event{};
  event.events = out ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = c;
  if (::epoll_ctl(set, EPOLL_CTL_MOD, c->fd, &event) != 0) Die("epoll_ctl");
}

void Add(int set, Connection* c) {
  ::fcntl(c->fd, F_SETFL, ::fcntl(c->fd, F_GETFL) | O_NONBLOCK);
  int one = 1;
  ::setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = c;
  if (::epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &event) != 0) Die("epoll_ctl");
}

// Sends [sent, limit) of the sequence as far as it goes.
void Push(int set, Connection* c, std::uint32_t sequence, std::uint64_t limit,
          std::size_t message) {
  std::uint8_t buffer[1 << 16];
  while (c->sent < limit) {
    std::size_t n = sizeof buffer < message ? sizeof buffer : message;
    if (n > limit - c->sent) n = static_cast<std::size_t>(limit - c->sent);
    Fill(sequence, c->sent, buffer, n);
    const ssize_t r = ::send(c->fd, buffer, n, MSG_NOSIGNAL);
    if (r < 0) {
      if (errno == EAGAIN) break;
      Die("send");
    }
    c->sent += static_cast<std::uint64_t>(r);
  }
  Watch(set, c, c->sent < limit);
}

int Serve(const Options& options) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_INET6;  // both families
  addrinfo* found = nullptr;
  if (::getaddrinfo(nullptr, options.port.c_str(), &hints, &found) != 0) {
    Die("getaddrinfo");
  }
  const int listener = ::socket(found->ai_family, SOCK_STREAM, 0);
  int one = 1;
  int zero = 0;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  ::setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  if (::bind(listener, found->ai_addr, found->ai_addrlen) != 0) Die("bind");
  if (::listen(listener, 4096) != 0) Die("listen");
  const int set = ::epoll_create1(0);
  Connection accepting;
  accepting.fd = listener;
  Add(set, &accepting);
  int ended = 0;
  std::vector<std::unique_ptr<Connection>> all;
  std::vector<std::uint8_t> buffer(1 << 18);
  while (ended < options.connections) {
    epoll_event events[64];
    const int n = ::epoll_wait(set, events, 64, -1);
    if (n < 0 && errno != EINTR) Die("epoll_wait");
    for (int e = 0; e < n; ++e) {
      auto* c = static_cast<Connection*>(events[e].data.ptr);
      if (c == &accepting) {
        const int fd = ::accept(listener, nullptr, nullptr);
        if (fd < 0) continue;
        all.push_back(std::make_unique<Connection>());
        all.back()->fd = fd;
        Add(set, all.back().get());
        continue;
      }
      const ssize_t r = ::recv(c->fd, buffer.data(), buffer.size(), 0);
      if (r < 0) {
        if (errno != EAGAIN) Die("recv");
      } else if (r == 0) {
        if (c->sent != c->received) {
          std::fprintf(stderr, "soak: the client left before its answer\n");
          return 1;
        }
        ::close(c->fd);
        ++ended;
        continue;
      } else {
        std::size_t at = 0;
        while (c->have_id < 4 && at < static_cast<std::size_t>(r)) {
          c->id |= std::uint32_t{buffer[at++]} << (8 * c->have_id++);
        }
        const std::size_t more = static_cast<std::size_t>(r) - at;
        if (!Check(c->id, c->received, &buffer[at], more)) return 1;
        c->received += more;
      }
      if (c->have_id == 4) {
        Push(set, c, c->id | kBack, c->received, options.message);
      }
    }
  }
  return 0;
}

int Client(const Options& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(options.address.c_str(), options.port.c_str(), &hints,
                    &found) != 0) {
    Die("getaddrinfo");
  }
  const int set = ::epoll_create1(0);
  std::vector<std::unique_ptr<Connection>> all;
  for (int i = 0; i < options.connections; ++i) {
    auto c = std::make_unique<Connection>();
    c->fd = ::socket(found->ai_family, SOCK_STREAM, 0);
    if (c->fd < 0) Die("socket");
    if (::connect(c->fd, found->ai_addr, found->ai_addrlen) != 0) {
      Die("connect");
    }
    c->id = static_cast<std::uint32_t>(i);
    const std::uint8_t id[4] = {
        static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i >> 8),
        static_cast<std::uint8_t>(i >> 16), static_cast<std::uint8_t>(i >> 24)};
    if (::send(c->fd, id, 4, MSG_NOSIGNAL) != 4) Die("send");
    Add(set, c.get());
    all.push_back(std::move(c));
  }
  std::vector<std::uint8_t> buffer(1 << 18);
  std::uint64_t total = 0;
  std::uint64_t reported = 0;
  const auto report = [&](bool now) {
    if (options.report.empty() || (!now && total - reported < 65536)) return;
    reported = total;
    const std::string temporary = options.report + ".new";
    if (FILE* file = std::fopen(temporary.c_str(), "w")) {
      std::fprintf(file, "bytes %llu\n",
                   static_cast<unsigned long long>(total));
      std::fclose(file);
      std::rename(temporary.c_str(), options.report.c_str());
    }
  };
  const int active = options.active < options.connections ? options.active
                                                          : options.connections;
  const std::size_t message = options.message;
  std::size_t turn = 0;  // whose it is
  std::uint64_t since = NowMs();
  const auto lingers = [&options] {
    return !options.linger.empty() &&
           ::access(options.linger.c_str(), F_OK) == 0;
  };
  const auto has_traffic = [&](int move) {
    if (options.stop.empty()) return move < options.moves;
    return ::access(options.stop.c_str(), F_OK) != 0;
  };
  bool whispers = false;
  for (int move = 0;; ++move) {
    whispers = whispers || !has_traffic(move);
    if (whispers && (options.whisper_ms == 0 || !lingers())) break;
    int busy = 0;
    if (options.stay_ms == 0) {
      turn = static_cast<unsigned>(move);
    } else if (NowMs() - since >= static_cast<unsigned>(options.stay_ms)) {
      since = NowMs();
      ++turn;
    }
    // A ping-pong of messages: the next goes when the last has been answered.
    for (int a = 0; a < active; ++a) {
      Connection* c = all[(turn * static_cast<unsigned>(active) +
                           static_cast<unsigned>(a)) %
                          all.size()]
                          .get();
      if (c->target != c->sent) continue;
      c->target = c->sent + (whispers ? 64 : options.bytes);
      ++busy;
      Push(set, c, c->id, std::min<std::uint64_t>(c->target, c->sent + message),
           message);
    }
    while (busy > 0) {
      epoll_event events[64];
      const int n = ::epoll_wait(set, events, 64, -1);
      if (n < 0 && errno != EINTR) Die("epoll_wait");
      for (int e = 0; e < n; ++e) {
        auto* c = static_cast<Connection*>(events[e].data.ptr);
        const ssize_t r = ::recv(c->fd, buffer.data(), buffer.size(), 0);
        if (r == 0) {
          std::fprintf(stderr, "soak: connection %u ended early\n", c->id);
          return 1;
        }
        if (r < 0 && errno != EAGAIN) Die("recv");
        if (r > 0) {
          if (!Check(c->id | kBack, c->received, buffer.data(),
                     static_cast<std::size_t>(r))) {
            return 1;
          }
          c->received += static_cast<std::uint64_t>(r);
          total += static_cast<std::uint64_t>(r);
          if (c->received == c->target) --busy;
        }
        // Up to two messages are under way, so both directions are busy.
        Push(set, c, c->id,
             std::min<std::uint64_t>(c->target, c->received + 2 * message),
             message);
      }
      report(false);
    }
    const int pause_ms = whispers ? options.whisper_ms : options.pause_ms;
    if (pause_ms > 0) ::usleep(1000 * pause_ms);
  }
  report(true);
  while (lingers()) ::usleep(50'000);
  for (auto& c : all) {
    if (::shutdown(c->fd, SHUT_WR) != 0) Die("shutdown");
  }
  for (auto& c : all) {
    ::fcntl(c->fd, F_SETFL, ::fcntl(c->fd, F_GETFL) & ~O_NONBLOCK);
    if (::recv(c->fd, buffer.data(), 1, 0) != 0) {
      std::fprintf(stderr, "soak: connection %u: no clean end\n", c->id);
      return 1;
    }
    ::close(c->fd);
  }
  report(true);
  std::printf("bytes %llu right\n", static_cast<unsigned long long>(total));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      words.push_back(word);
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    if (word == "--connections")
      options.connections = std::atoi(value);
    else if (word == "--bytes")
      options.bytes = std::strtoull(value, nullptr, 0);
    else if (word == "--message")
      options.message = std::strtoull(value, nullptr, 0);
    else if (word == "--active")
      options.active = std::atoi(value);
    else if (word == "--moves")
      options.moves = std::atoi(value);
    else if (word == "--pause")
      options.pause_ms = std::atoi(value);
    else if (word == "--stay")
      options.stay_ms = std::atoi(value);
    else if (word == "--whisper")
      options.whisper_ms = std::atoi(value);
    else if (word == "--linger")
      options.linger = value;
    else if (word == "--report")
      options.report = value;
    else if (word == "--stop")
      options.stop = value;
    else
      words.clear();
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (words.size() == 2 && words[0] == "server") {
    options.port = words[1];
    return Serve(options);
  }
  if (words.size() == 3 && words[0] == "client") {
    options.address = words[1];
    options.port = words[2];
    return Client(options);
  }
  std::fprintf(stderr,
               "usage: soak server PORT | client ADDRESS PORT, and options\n");
  return 2;
}
