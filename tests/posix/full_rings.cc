// Full rings: who writes more than there is room for, and who reads slowly or
// not at all; many connections whose ends do as they can.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/bulk.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

// Both ends write more than a ring holds before they read the most of it: TCP
// has room for that.  Each writer has waited for room before, and got some.
void BothWrite(int fd) {
  constexpr std::size_t kAll = 1'200'000;
  constexpr std::size_t kSome = 100'000;
  for (int i = 0; i < 4; ++i) {
    Barrier();
    std::vector<char> bytes(kAll);
    std::thread writer([&] { SendAll(fd, bytes.data(), kAll); });
    ::poll(nullptr, 0, 20 + 20 * i);
    std::vector<char> got(kAll);
    RecvAll(fd, got.data(), kSome);
    writer.join();
    RecvAll(fd, got.data(), kAll - kSome);
  }
  Log("done");
}

Case both_write("both_write", BothWrite, BothWrite);

char Letter(std::size_t at) { return static_cast<char>(at % 251); }

// A program that has set its SO_SNDBUF is not given the room of a ring: what
// may lie unread is about that, and what the receiver's buffer holds.
Case small_send_buffer(
    "small_send_buffer",
    [](int fd) {
      Barrier();
      Barrier();
      std::size_t got = 0;
      std::vector<char> some(3000);
      // (In parts, with others behind them: each makes room.)
      for (ssize_t n = 1; n > 0; got += static_cast<std::size_t>(n)) {
        n = ::recv(fd, some.data(), some.size(), 0);
        CHECK_THAT(n >= 0);
        for (ssize_t i = 0; i < n; ++i) {
          CHECK_THAT(some[i] == Letter(got + static_cast<std::size_t>(i)));
        }
      }
      Log("all %d", got > 2'000'000);
    },
    [](int fd) {
      const int size = 4096;
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) ==
                 0);
      Barrier();
      std::size_t sent = 0;
      std::vector<char> some(2000);
      const auto send = [&](int flags) {
        for (std::size_t i = 0; i < some.size(); ++i) {
          some[i] = Letter(sent + i);
        }
        const ssize_t n = ::send(fd, some.data(), some.size(), flags);
        if (n > 0) sent += static_cast<std::size_t>(n);
        return n;
      };
      pollfd one{fd, POLLOUT, 0};
      int writable = 1;
      // A lane that comes between two calls has room of its own.
      for (int i = 0; writable != 0 && i < 10; ++i) {
        while (send(MSG_DONTWAIT) > 0) {
        }
        writable = ::poll(&one, 1, 0);
      }
      Log("no more than the buffers %d", sent < 200'000);
      Log("writable %d", writable);
      Barrier();
      // By each way to wait for room.
      while (sent < 700'000) CHECK_THAT(send(0) > 0);
      while (sent < 1'400'000) {
        CHECK_THAT(::poll(&one, 1, -1) == 1);
        (void)send(MSG_DONTWAIT);
      }
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLOUT | EPOLLET;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      while (sent < 2'100'000) {
        CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
        while (send(MSG_DONTWAIT) > 0) {
        }
      }
      ::close(set);
      CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
    });

// The reader takes a little of a full ring, too little to wake the writer for,
// and then no more before all is written: TCP has room for that.
Case reader_pauses(
    "reader_pauses",
    [](int fd) {
      std::vector<char> bytes(1'200'000);
      Barrier();
      SendAll(fd, bytes.data(), bytes.size());
      Barrier();
    },
    [](int fd) {
      std::vector<char> got(1'200'000);
      Barrier();
      // (What has come before counts towards the first wake-up.)
      for (int i = 0; i < 2; ++i) {
        ::poll(nullptr, 0, 20);
        RecvAll(fd, got.data(), 40'000);
      }
      Barrier();
      RecvAll(fd, got.data(), got.size() - 80'000);
      Log("done");
    });

// Who is slow, as a program is that writes to a disk what it reads, is no
// faster over TCP: the stream is soon back on its lane, and its peer learns to
// wait.
Case slow_reader(
    "slow_reader",
    [](int fd) {
      Barrier();
      SendBulk(fd, 21, 96 << 20);
      Barrier();
    },
    [](int fd) {
      const std::uint64_t before = TcpBytes(fd);
      Barrier();
      std::uint64_t at = 0;
      std::vector<char> got(1 << 20);
      for (int i = 0; i < 96; ++i) {
        if (i % 8 == 0) ::poll(nullptr, 0, 400);
        RecvAll(fd, got.data(), got.size());
        CHECK_THAT(IsPattern(21, at, got.data(), got.size()));
        at += got.size();
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("on the lane %d", warm == nullptr || TcpBytes(fd) - before < at / 2);
      Barrier();
    },
    {.seconds = 60});

constexpr std::size_t kSlowBytes = 16 << 20;

// Many connections of one service, whose reader stops for all of them: TCP
// would take megabytes of each, so one of them tries whether that is of use.
Case slow_reader_of_many(
    "slow_reader_of_many",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<std::thread> senders;
      // (In one call, and clearly more than TCP's buffers take: who is slow to
      // fill them is not in vain there.)
      std::vector<char> all(kSlowBytes);
      Pattern(22, 0, all.data(), all.size());
      for (int i = 0; i < 10; ++i) {
        const int fd = Accept(listener);
        WarmAs(fd, false);
        senders.emplace_back([fd, &all] {
          char go;
          RecvAll(fd, &go, 1);
          SendAll(fd, all.data(), all.size());
          ::close(fd);
        });
      }
      for (std::thread& sender : senders) sender.join();
    },
    [](int) {
      const int port = HearPort();
      std::vector<int> fds;
      std::vector<std::uint64_t> before;
      for (int i = 0; i < 10; ++i) {
        fds.push_back(Connect(port));
        WarmAs(fds.back(), true);
      }
      for (const int fd : fds) {
        before.push_back(TcpBytes(fd));
        SendAll(fd, "g", 1);
      }
      ::poll(nullptr, 0, 450);
      // (What has come, read or not.)
      int left = 0;
      for (std::size_t i = 0; i < fds.size(); ++i) {
        if (TcpBytes(fds[i]) - before[i] > 16 << 10) ++left;
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("most stay %d", warm == nullptr || left <= 5);
      std::vector<char> got(64 << 10);
      for (std::uint64_t at = 0; at < kSlowBytes; at += got.size()) {
        for (const int fd : fds) {
          RecvAll(fd, got.data(), got.size());
          CHECK_THAT(IsPattern(22, at, got.data(), got.size()));
        }
      }
      for (const int fd : fds) {
        Result("end", ::recv(fd, got.data(), 1, 0));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

// A program that talks to itself: more than a ring before it reads.
Case self_talk(
    "self_talk",
    [](int) {
      int port;
      const int listener = Listen(&port);
      const int out = Connect(port);
      const int in = Accept(listener);
      char text[64] = {};
      for (int i = 0; i < 500; ++i) {
        SendAll(out, text, 64);
        RecvAll(in, text, 64);
        SendAll(in, text, 64);
        RecvAll(out, text, 64);
      }
      // TCP over loopback takes this much without a reader.
      std::vector<char> big(1 << 20);
      Pattern(12, 0, big.data(), big.size());
      SendAll(out, big.data(), big.size());
      std::vector<char> got(1 << 20);
      RecvAll(in, got.data(), got.size());
      CHECK_THAT(IsPattern(12, 0, got.data(), got.size()));
      std::thread reader([&] { RecvBulk(in, 13, 20 << 20); });
      SendBulk(out, 13, 20 << 20);
      reader.join();
      Result("close", ::close(out));
      int error;
      Log("rest %zu", Drain(in, &error));
    },
    [](int) {}, {.warm = false, .connect = false, .seconds = 30});

// Many connections, nonblocking, one thread each side; sizes and moments vary.
struct Flow {
  int fd;
  std::uint64_t sent = 0;
  std::uint64_t got = 0;
  std::uint64_t total;
  bool shut = false;
  bool ended = false;
};

void Pump(std::vector<Flow>& flows, bool client, std::uint32_t flags) {
  const int set = ::epoll_create1(0);
  for (std::size_t i = 0; i < flows.size(); ++i) {
    SetNonblock(flows[i].fd, true);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | flags;
    event.data.u64 = i;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, flows[i].fd, &event) == 0);
  }
  std::size_t left = flows.size();
  Random random{Seed() + client};
  std::vector<char> buffer(70'000);
  while (left > 0) {
    epoll_event events[32];
    const int n = ::epoll_wait(set, events, 32, 10'000);
    if (n <= 0) Fail("%zu connections are stuck", left);
    for (int e = 0; e < n; ++e) {
      const std::uint64_t i = events[e].data.u64;
      Flow& flow = flows[i];
      const std::uint64_t out = 2 * i + client;
      const std::uint64_t in = 2 * i + !client;
      bool more_out = true;
      bool more_in = true;
      for (int turn = 0; (flags & EPOLLET) || turn < 2; ++turn) {
        if (flow.sent < flow.total) {
          const std::size_t want = std::min<std::uint64_t>(
              1 + random.Below(buffer.size()), flow.total - flow.sent);
          Pattern(out, flow.sent, buffer.data(), want);
          const ssize_t k = ::send(flow.fd, buffer.data(), want, MSG_NOSIGNAL);
          if (k < 0 && errno != EAGAIN)
            Fail("send on %d of %llu: %s", flow.fd,
                 static_cast<unsigned long long>(i), ErrorName(errno));
          more_out = k > 0;
          if (k > 0) flow.sent += static_cast<std::uint64_t>(k);
        } else if (!flow.shut) {
          flow.shut = true;
          more_out = false;
          ::shutdown(flow.fd, SHUT_WR);
          epoll_event event{};
          event.events = EPOLLIN | flags;
          event.data.u64 = i;
          ::epoll_ctl(set, EPOLL_CTL_MOD, flow.fd, &event);
        } else {
          more_out = false;
        }
        if (!flow.ended) {
          const ssize_t k = ::recv(flow.fd, buffer.data(),
                                   1 + random.Below(buffer.size() - 1), 0);
          if (k < 0 && errno != EAGAIN)
            Fail("recv on %d of %llu: %s", flow.fd,
                 static_cast<unsigned long long>(i), ErrorName(errno));
          more_in = k > 0;
          if (k > 0) {
            if (!IsPattern(in, flow.got, buffer.data(),
                           static_cast<std::size_t>(k))) {
              Fail("wrong bytes in %llu", static_cast<unsigned long long>(i));
            }
            flow.got += static_cast<std::uint64_t>(k);
          }
          if (k == 0) flow.ended = true;
        } else {
          more_in = false;
        }
        if (!more_in && !more_out) break;
      }
      if (flow.ended && flow.shut && flow.fd >= 0) {
        CHECK_THAT(flow.got == flow.total);
        ::epoll_ctl(set, EPOLL_CTL_DEL, flow.fd, nullptr);
        ::close(flow.fd);
        flow.fd = -1;
        --left;
      }
    }
  }
  ::close(set);
  Log("done");
}

void ManyServer(int count, std::uint32_t flags, std::uint64_t most) {
  const int listener = ListenAndTell();
  std::vector<Flow> flows;
  Random sizes{Seed() * 31};
  for (int i = 0; i < count; ++i) {
    // In the order of connect(): one at a time.
    const int fd = Accept(listener);
    Tell(0);
    flows.push_back({.fd = fd, .total = 1 + sizes.Below(most)});
  }
  ::close(listener);
  Pump(flows, false, flags);
}

void ManyClient(int count, std::uint32_t flags, std::uint64_t most) {
  const int port = HearPort();
  std::vector<Flow> flows;
  Random sizes{Seed() * 31};
  for (int i = 0; i < count; ++i) {
    const int fd = Connect(port);
    Hear();
    flows.push_back({.fd = fd, .total = 1 + sizes.Below(most)});
  }
  Pump(flows, true, flags);
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 60};
Case many_level(
    "many_level", [](int) { ManyServer(50, 0, 1'500'000); },
    [](int) { ManyClient(50, 0, 1'500'000); }, kAlone);
Case many_edge(
    "many_edge", [](int) { ManyServer(200, EPOLLET, 300'000); },
    [](int) { ManyClient(200, EPOLLET, 300'000); }, kAlone);
Case one_edge(
    "one_edge", [](int) { ManyServer(1, EPOLLET, 60'000'000); },
    [](int) { ManyClient(1, EPOLLET, 60'000'000); }, kAlone);

}  // namespace
