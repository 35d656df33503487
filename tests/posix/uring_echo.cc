// usage: uring_echo server PORT_FILE | client PORT CONNECTIONS BYTES ROUNDS
//
// An echo server and its client by liburing: multishot accept, one request at
// a time for each connection, close by a request.
#include <arpa/inet.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

enum Kind : std::uintptr_t { kAccept = 1, kRecv, kSend, kClose, kConnect };

struct alignas(16) Connection {
  int fd = -1;
  std::vector<char> bytes;
  unsigned have = 0;
  unsigned sent = 0;
  int rounds = 0;
};

io_uring ring;

[[noreturn]] void Fail(const char* what, int error) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(error));
  std::exit(1);
}

io_uring_sqe* Next() {
  io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
  if (sqe != nullptr) return sqe;
  ::io_uring_submit(&ring);
  return ::io_uring_get_sqe(&ring);
}
void Is(io_uring_sqe* sqe, Kind kind, Connection* connection) {
  sqe->user_data = reinterpret_cast<std::uintptr_t>(connection) | kind;
}
void Recv(Connection* c, unsigned most) {
  io_uring_sqe* sqe = Next();
  ::io_uring_prep_recv(sqe, c->fd, c->bytes.data() + c->have, most - c->have,
                       0);
  Is(sqe, kRecv, c);
}
void Send(Connection* c, unsigned all) {
  io_uring_sqe* sqe = Next();
  ::io_uring_prep_send(sqe, c->fd, c->bytes.data() + c->sent, all - c->sent, 0);
  Is(sqe, kSend, c);
}
void Close(Connection* c) {
  io_uring_sqe* sqe = Next();
  ::io_uring_prep_close(sqe, c->fd);
  Is(sqe, kClose, c);
}

void NoDelay(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Calls `done(kind, connection, result)` for each completion, until it says no.
template <class Done>
void Run(Done&& done) {
  for (;;) {
    const int n = ::io_uring_submit_and_wait(&ring, 1);
    if (n < 0 && n != -EINTR) Fail("submit", -n);
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring, &cqe) == 0) {
      const auto data = static_cast<std::uintptr_t>(cqe->user_data);
      const int result = cqe->res;
      ::io_uring_cqe_seen(&ring, cqe);
      if (!done(static_cast<Kind>(data & 15),
                reinterpret_cast<Connection*>(data & ~std::uintptr_t{15}),
                result)) {
        return;
      }
    }
  }
}

// Ends with its last connection.
void Serve(const char* port_file) {
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof own;
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&own), length) != 0 ||
      ::listen(listener, 1024) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length) !=
          0) {
    Fail("listen", errno);
  }
  const std::string part = std::string(port_file) + ".part";
  std::FILE* file = std::fopen(part.c_str(), "w");
  std::fprintf(file, "%d\n", ntohs(own.sin_port));
  std::fclose(file);
  std::rename(part.c_str(), port_file);
  io_uring_sqe* sqe = Next();
  ::io_uring_prep_multishot_accept(sqe, listener, nullptr, nullptr, 0);
  Is(sqe, kAccept, nullptr);
  int live = 0;
  constexpr unsigned kMost = 65536;
  Run([&](Kind kind, Connection* c, int result) {
    switch (kind) {
      case kAccept:
        if (result < 0) Fail("accept", -result);
        c = new Connection{.fd = result, .bytes = std::vector<char>(kMost)};
        NoDelay(result);
        ++live;
        Recv(c, kMost);
        return true;
      case kRecv:
        if (result <= 0) {
          Close(c);
          return true;
        }
        c->have = static_cast<unsigned>(result);
        c->sent = 0;
        Send(c, c->have);
        return true;
      case kSend:
        if (result < 0) Fail("send", -result);
        c->sent += static_cast<unsigned>(result);
        if (c->sent < c->have) {
          Send(c, c->have);
        } else {
          c->have = 0;
          Recv(c, kMost);
        }
        return true;
      default:
        delete c;
        return --live > 0;
    }
  });
}

void Ask(int port, int connections, unsigned bytes, int rounds) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<std::unique_ptr<Connection>> all;
  for (int i = 0; i < connections; ++i) {
    all.push_back(std::make_unique<Connection>());
    Connection* c = all.back().get();
    c->fd = ::socket(AF_INET, SOCK_STREAM, 0);
    c->bytes.assign(bytes, static_cast<char>(i));
    NoDelay(c->fd);
    io_uring_sqe* sqe = Next();
    ::io_uring_prep_connect(sqe, c->fd, reinterpret_cast<sockaddr*>(&to),
                            sizeof to);
    Is(sqe, kConnect, c);
  }
  const auto start = std::chrono::steady_clock::now();
  int live = connections;
  long wrong = 0;
  Run([&](Kind kind, Connection* c, int result) {
    if (result < 0 || (result == 0 && (kind == kSend || kind == kRecv))) {
      Fail("a request", -result);
    }
    switch (kind) {
      case kConnect:
        Send(c, bytes);
        return true;
      case kSend:
        c->sent += static_cast<unsigned>(result);
        c->have = 0;
        if (c->sent < bytes) {
          Send(c, bytes);
        } else {
          Recv(c, bytes);
        }
        return true;
      case kRecv:
        c->have += static_cast<unsigned>(result);
        if (c->have < bytes) {
          Recv(c, bytes);
          return true;
        }
        wrong += std::count_if(c->bytes.begin(), c->bytes.end(),
                               [&](char b) { return b != c->bytes[0]; });
        c->sent = 0;
        if (++c->rounds < rounds) {
          Send(c, bytes);
        } else {
          Close(c);
        }
        return true;
      default:
        return --live > 0;
    }
  });
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;
  std::printf("%d connections, %d messages of %u bytes, %ld wrong bytes\n",
              connections, connections * rounds, bytes, wrong);
  std::fprintf(stderr, "%.0f messages a second\n",
               connections * rounds / time.count());
}

}  // namespace

int main(int argc, char** argv) {
  const int error = ::io_uring_queue_init(256, &ring, 0);
  if (error < 0) {
    std::printf("SKIPPED: io_uring is not to be had here\n");
    return 77;
  }
  if (argc == 3) {
    Serve(argv[2]);
  } else if (argc == 6) {
    Ask(std::atoi(argv[2]), std::atoi(argv[3]),
        static_cast<unsigned>(std::atoi(argv[4])), std::atoi(argv[5]));
  } else {
    return 2;
  }
}
