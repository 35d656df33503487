// How connections end in order: half-close, shutdown, close, EOF.
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/posix/bulk.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

// The client says all, half-closes, and hears all.
Case half_close_client(
    "half_close_client",
    [](int fd) {
      RecvEvenly(fd, 1, 3'000'000);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLRDHUP | POLLOUT, POLLIN | POLLRDHUP | POLLOUT);
      SendEvenly(fd, 2, 3'000'000);
      Result("close", ::close(fd));
    },
    [](int fd) {
      SendEvenly(fd, 1, 3'000'000);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      errno = 0;
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      RecvEvenly(fd, 2, 3'000'000);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Result("close", ::close(fd));
    });

Case half_close_server(
    "half_close_server",
    [](int fd) {
      SendEvenly(fd, 1, 1'000'000);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      RecvEvenly(fd, 2, 1'000'000);
      LogDrain(fd);
      Result("close", ::close(fd));
    },
    [](int fd) {
      RecvEvenly(fd, 1, 1'000'000);
      LogDrain(fd);
      LogDrain(fd);
      SendEvenly(fd, 2, 1'000'000);
      Result("close", ::close(fd));
    });

Case both_half_close(
    "both_half_close",
    [](int fd) {
      SendAll(fd, "abc", 3);
      ::shutdown(fd, SHUT_WR);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Barrier();
      Result("close", ::close(fd));
    },
    [](int fd) {
      SendAll(fd, "defg", 4);
      ::shutdown(fd, SHUT_WR);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Barrier();
      Result("close", ::close(fd));
    });

// Descriptors of this process, under whatever number, that are connected to one
// of `ports`.
int ConnectedTo(const std::set<int>& ports) {
  int found = 0;
  DIR* const all = ::opendir("/proc/self/fd");
  CHECK_THAT(all != nullptr);
  while (const dirent* one = ::readdir(all)) {
    const int fd = std::atoi(one->d_name);
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (one->d_name[0] != '.' &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET && ports.contains(ntohs(peer.sin_port))) {
      ++found;
    }
  }
  ::closedir(all);
  return found;
}

// A server that closes what is idle has the descriptors back, though the client
// keeps its end and does not look.
constexpr int kIdle = 12;
Case close_idle(
    "close_frees_the_descriptor",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<int> fds;
      std::set<int> ports;
      for (int i = 0; i < kIdle; ++i) {
        sockaddr_in peer{};
        socklen_t length = sizeof peer;
        fds.push_back(
            ::accept(listener, reinterpret_cast<sockaddr*>(&peer), &length));
        CHECK_THAT(fds.back() >= 0);
        ports.insert(ntohs(peer.sin_port));
        Warm(fds.back());
        // Some hear a last word before the close.
        if (i % 3 == 1) {
          SendAll(fds.back(), "idle", 4);
          Barrier();
        }
      }
      Log("%d connected", ConnectedTo(ports));
      for (const int fd : fds) CHECK_THAT(::close(fd) == 0);
      Barrier();
      const std::uint64_t until = NowMs() + 10'000;
      while (ConnectedTo(ports) != 0 && NowMs() < until) ::poll(nullptr, 0, 5);
      Log("%d connected", ConnectedTo(ports));
      Barrier();
      Barrier();
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      std::vector<int> fds;
      for (int i = 0; i < kIdle; ++i) {
        fds.push_back(Connect(port));
        Warm(fds.back());
        char text[4];
        if (i % 3 == 1) {
          RecvAll(fds.back(), text, sizeof text);
          Barrier();
        }
      }
      Barrier();
      Barrier();
      for (int i = 0; i < kIdle; ++i) {
        const int fd = fds[static_cast<std::size_t>(i)];
        AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP,
                  POLLIN | POLLOUT | POLLRDHUP);
        if (i % 2 == 0) LogDrain(fd);
        Result("first send", ::send(fd, "x", 1, MSG_NOSIGNAL));
        ssize_t n;
        while ((n = ::send(fd, "x", 1, MSG_NOSIGNAL)) > 0) {
          ::poll(nullptr, 0, 1);
        }
        Result("a later send", n);
        LogDrain(fd);
        AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
        Result("close", ::close(fd));
      }
      Barrier();
    },
    {.warm = false, .connect = false});

// A child of fork has no part in what was closed before, though the peer has
// not read all of it yet.
Case close_then_fork(
    "close_then_fork",
    [](int fd) {
      sockaddr_in peer{};
      socklen_t length = sizeof peer;
      CHECK_THAT(
          ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0);
      const std::set<int> port{ntohs(peer.sin_port)};
      SendAll(fd, "last words", 10);
      Result("close", ::close(fd));
      int to_child[2], to_parent[2];
      CHECK_THAT(::pipe(to_child) == 0 && ::pipe(to_parent) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(to_child[1]);
        char found = static_cast<char>(ConnectedTo(port));
        CHECK_THAT(::write(to_parent[1], &found, 1) == 1);
        ::_exit(::read(to_child[0], &found, 1) == 0 ? 0 : 1);
      }
      char found = 9;
      CHECK_THAT(::read(to_parent[0], &found, 1) == 1);
      Log("the child has %d", found);
      Barrier();
      Barrier();
      ::close(to_child[1]);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
    },
    [](int fd) {
      Barrier();
      ssize_t n;
      while ((n = ::send(fd, "x", 1, MSG_NOSIGNAL)) > 0) {
        ::poll(nullptr, 0, 1);
      }
      Result("send", n);
      Barrier();
    });

// What is sent behind the peer's close is taken once: the answer to it is a
// reset, of which the next send tells, however soon behind the close the first
// one comes.  (Not amid a switch, which kSwitchUs are enough for.)
constexpr useconds_t kSwitchUs = 20'000;
void SendTwice(int fd, int delay_us) {
  if (delay_us > 0) ::usleep(static_cast<useconds_t>(delay_us));
  Log("behind %d us", delay_us);
  Result("first", ::send(fd, "abcd", 4, MSG_NOSIGNAL));
  ::usleep(100'000);
  Result("second", ::send(fd, "abcd", 4, MSG_NOSIGNAL));
  Result("third", ::send(fd, "abcd", 4, MSG_NOSIGNAL));
  char byte;
  Result("recv", ::recv(fd, &byte, 1, 0));
  ::close(fd);
}

constexpr int kDelaysUs[] = {0, 0, 0, 0, 20, 50, 100, 200, 500, 2000, 20'000};

Case send_behind_close(
    "send_behind_close",
    [](int) {
      const int listener = ListenAndTell();
      for (std::size_t i = 0; i < std::size(kDelaysUs); ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        ::usleep(kSwitchUs);
        Barrier();
        ::close(fd);
        Barrier();
      }
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      for (const int delay_us : kDelaysUs) {
        const int fd = Connect(port);
        Warm(fd);
        Barrier();
        Barrier();
        SendTwice(fd, delay_us);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

// The same where the process that sends has closed the other end itself: no
// thread has heard of the close yet.
Case send_behind_own_close(
    "send_behind_own_close", [](int) {},
    [](int) {
      int port;
      const int listener = Listen(&port);
      for (const int delay_us : kDelaysUs) {
        for (const bool accepted : {false, true}) {
          int fd = Connect(port);
          int other = Accept(listener);
          std::thread answers([other] { WarmAs(other, false); });
          WarmAs(fd, true);
          answers.join();
          ::usleep(kSwitchUs);
          if (accepted) std::swap(fd, other);
          ::close(other);
          SendTwice(fd, delay_us);
        }
      }
      ::close(listener);
    },
    {.warm = false, .connect = false, .seconds = 60});

Case shutdown_read(
    "shutdown_read",
    [](int fd) {
      SendAll(fd, "before", 6);
      Barrier();
      Barrier();
      SendAll(fd, "after", 5);
      Barrier();
      char text[8];
      RecvAll(fd, text, 2);
      Barrier();
      Result("close", ::close(fd));
    },
    [](int fd) {
      Barrier();
      char text[64];
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      Result("shutdown", ::shutdown(fd, SHUT_RD));
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Result("recv at the end", ::recv(fd, text, sizeof text, 0));
      Result("recv at the end", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLRDHUP | POLLOUT);
      Barrier();
      Barrier();
      // Linux still takes what comes after shutdown(SHUT_RD).
      Result("send", ::send(fd, "ok", 2, 0));
      Barrier();
    });

Case shutdown_both(
    "shutdown_both",
    [](int fd) {
      Barrier();
      LogDrain(fd);
      Result("close", ::close(fd));
    },
    [](int fd) {
      Result("send", ::send(fd, "bye", 3, 0));
      Result("shutdown", ::shutdown(fd, SHUT_RDWR));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Barrier();
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP | POLLRDHUP | POLLIN);
      Result("close", ::close(fd));
    });

Case shutdown_bad(
    "shutdown_bad", [](int fd) { LogDrain(fd); },
    [](int fd) {
      Result("shutdown 7", ::shutdown(fd, 7));
      Result("shutdown -1", ::shutdown(fd, -1));
      Result("send", ::send(fd, "ok", 2, 0));
    });

// It closes nothing: the connection may leave TCP after it.
Case shutdown_bad_first(
    "shutdown_bad_first",
    [](int fd) {
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Result("shutdown 7", ::shutdown(fd, 7));
      Warm(fd);
      Result("send", ::send(fd, "ok", 2, 0));
    },
    {.warm = false});

// No address in particular means this host, by its loopback: nowhere near a
// device.
bool OnADevice() {
  if (std::getenv("PAIR_ADDRESS") == nullptr) return false;
  std::fprintf(stderr, "SKIPPED: no address leads to the loopback\n");
  return true;
}
Case connect_any(
    "connect_to_no_address",
    [](int) {
      if (OnADevice()) return;
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Warm(fd);
      LogDrain(fd);
    },
    [](int) {
      if (OnADevice()) return;
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<std::uint16_t>(Hear()));
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      CHECK_THAT(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) ==
                 0);
      Warm(fd);
      Result("close", ::close(fd));
    },
    {.warm = false, .connect = false});

Case linger_waits(
    "linger_waits",
    [](int fd) {
      linger option{1, 5};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option) == 0);
      SendEvenly(fd, 5, 200'000);
      Result("close", ::close(fd));
    },
    [](int fd) {
      RecvEvenly(fd, 5, 200'000);
      LogDrain(fd);
    });

// A peer that does not read: the close waits as long as it was asked to, then
// TCP goes on without it; and nobody else waits, a fork say.
Case linger_in_vain(
    "linger_in_vain",
    [](int fd) {
      const linger option{1, 1};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option) == 0);
      std::vector<char> bytes(1 << 16, 'p');
      for (int turns = 0; turns < 50; ++turns) {
        if (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) turns = 0;
        ::poll(nullptr, 0, 1);
      }
      const std::uint64_t before = NowMs();
      Result("close", ::close(fd));
      const std::uint64_t after = NowMs();
      Log("close waited: %s", after - before > 900 ? "yes" : "no");
      Log("and came back: %s", after - before < 8000 ? "yes" : "no");
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      LogChild(child);
      Log("fork at once: %s", NowMs() - after < 700 ? "yes" : "no");
      Barrier();
      Barrier();
    },
    [](int fd) {
      Barrier();
      std::vector<char> bytes(1 << 16);
      ssize_t n;
      while ((n = ::recv(fd, bytes.data(), bytes.size(), 0)) > 0) {
      }
      Result("recv", n);
      Barrier();
    },
    {.seconds = 40});

// Everything written before close or exit arrives, however slow the reader.
Case close_at_once(
    "close_at_once",
    [](int fd) {
      SendEvenly(fd, 7, 150'000);
      Result("close", ::close(fd));
      Barrier();
    },
    [](int fd) {
      Barrier();
      RecvEvenly(fd, 7, 150'000);
      LogDrain(fd);
    });

// One end shuts down for writing while both look for a lane: the other sees the
// end at once, and does not wait for a lane that will not come.
Case half_close_early(
    "half_close_while_seeking",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 60; ++i) {
        const int fd = Accept(listener);
        char text[16];
        for (int k = 0; k < 3; ++k) {
          RecvAll(fd, text, sizeof text);
          SendAll(fd, text, sizeof text);
        }
        // In no call, so that the engine may have the stream when the end
        // comes.
        ::poll(nullptr, 0, 5);
        const std::uint64_t start = NowMs();
        CHECK_THAT(::recv(fd, text, sizeof text, 0) == 0);
        if (NowMs() - start > 1500) Fail("the end came late");
        ::close(fd);
      }
      Log("done");
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      Random random{Seed()};
      for (int i = 0; i < 60; ++i) {
        const int fd = Connect(port);
        char text[16] = {};
        for (int k = 0; k < 3; ++k) {
          SendAll(fd, text, sizeof text);
          RecvAll(fd, text, sizeof text);
        }
        for (std::uint64_t n = random.Below(2'000'000); n > 0; --n) {
          std::atomic_signal_fence(std::memory_order_seq_cst);
        }
        ::shutdown(fd, SHUT_WR);
        CHECK_THAT(::recv(fd, text, sizeof text, 0) == 0);
        ::close(fd);
      }
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 60});

// SHUT_RD, then back to TCP: a lane would have no way to say so, and the peer
// would be reset.
Case shut_rd_then_tcp(
    "shutdown_read_then_tcp",
    [](int fd) {
      Result("shutdown", ::shutdown(fd, SHUT_RD));
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      int status;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      char text[16] = {};
      for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 50; ++i) SendAll(fd, text, sizeof text);
        Barrier();
      }
      Result("send", ::send(fd, "end", 3, MSG_NOSIGNAL));
      Barrier();
    },
    [](int fd) {
      char text[16] = {};
      for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 50; ++i) {
          RecvAll(fd, text, sizeof text);
          SendAll(fd, text, sizeof text);
        }
        Barrier();
      }
      Result("send", ::send(fd, text, sizeof text, MSG_NOSIGNAL));
      RecvAll(fd, text, 3);
      Log("%.3s", text);
      Barrier();
      ::close(fd);
    });

// Out of descriptors, closed numbers.
Case bad_fd(
    "bad_fd", [](int fd) { LogDrain(fd); },
    [](int fd) {
      ::close(fd);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      Result("close", ::close(fd));
      int n;
      Result("ioctl", ::ioctl(fd, FIONREAD, &n));
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 0));
      Log("revents %x", static_cast<unsigned>(one.revents));
    });

}  // namespace
