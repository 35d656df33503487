// Connections that move bytes both ways by every kind of call, while other
// threads of both processes fork, and whoever waits makes an epoll set of its
// own and closes it: nothing is lost or doubled, no event is another set's, and
// what a look has shown can be read.
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/posix/churn.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;
using namespace churn;

constexpr int kThreads = 5;  // of the client; each has one connection at a time
const int kEach = Scale(40);

std::atomic<int> gone{0};

void Write(int fd, std::uint64_t seed, std::size_t total, Random random) {
  std::vector<char> bytes(kLongest);
  std::size_t at = 0;
  while (at < total) {
    const std::size_t n = std::min(Length(&random, 3000), total - at);
    Pattern(seed, at, bytes.data(), n);
    const std::uint64_t how = random.Below(4);
    for (std::size_t done = 0; done < n;) {
      char* const from = bytes.data() + done;
      const std::size_t left = n - done;
      iovec two[2] = {{from, left / 2}, {from + left / 2, left - left / 2}};
      msghdr message{};
      message.msg_iov = two;
      message.msg_iovlen = 2;
      const ssize_t k =
          how == 0   ? ::write(fd, from, left)
          : how == 1 ? ::writev(fd, two, 2)
          : how == 2 ? ::sendmsg(fd, &message, MSG_NOSIGNAL)
                     : ::send(fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
      CHECK_THAT(k > 0 || Again());
      if (k > 0) {
        done += static_cast<std::size_t>(k);
      } else {
        Wait(fd, POLLOUT, &random);
      }
    }
    at += n;
  }
  CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
}

// What a look shows can be read by who does not wait.
ssize_t LookAndRead(int fd, std::uint64_t seed, std::size_t at, char* to,
                    std::size_t most, bool peek, Random* random) {
  int shown = 0;
  if (peek) {
    const ssize_t n = ::recv(fd, to, most, MSG_PEEK);
    if (n <= 0) return n;
    if (!IsPattern(seed, at, to, static_cast<std::size_t>(n))) {
      Fail("a look shows other bytes");
    }
    shown = static_cast<int>(n);
  } else if (::ioctl(fd, FIONREAD, &shown) != 0 || shown == 0) {
    errno = EAGAIN;
    return -1;
  }
  // (Here it may leave its lane.)
  if (random->Below(8) == 0) ::usleep(1000);
  const ssize_t n = ::recv(
      fd, to, std::min(most, static_cast<std::size_t>(shown)), MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) ++gone;
  if (n == 0) Fail("the end, where a look has shown bytes");
  return n;
}

void Read(int fd, std::uint64_t seed, std::size_t total, Random random) {
  std::vector<char> bytes(kLongest);
  char* const to = bytes.data();
  std::size_t at = 0;
  for (;;) {
    const std::size_t n = Length(&random, 5000);
    ssize_t k;
    switch (random.Below(8)) {
      case 0:
        k = ::read(fd, to, n);
        break;
      case 1:
        k = ::recv(fd, to, n, MSG_DONTWAIT);
        break;
      case 2:
        k = ::recv(fd, to, std::min<std::size_t>(n, 3000), MSG_WAITALL);
        break;
      case 3: {
        iovec two[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
        k = ::readv(fd, two, 2);
        break;
      }
      case 4:
      case 5:
        k = LookAndRead(fd, seed, at, to, n, true, &random);
        break;
      case 6:
        k = LookAndRead(fd, seed, at, to, n, false, &random);
        break;
      default:
        Wait(fd, POLLIN, &random);
        k = ::recv(fd, to, n, MSG_DONTWAIT);
    }
    CHECK_THAT(k >= 0 || Again());
    if (k == 0) break;
    if (k < 0) {
      Wait(fd, POLLIN, &random);
      continue;
    }
    if (!IsPattern(seed, at, to, static_cast<std::size_t>(k))) {
      Fail("other bytes at %zu", at);
    }
    at += static_cast<std::size_t>(k);
  }
  if (at != total) Fail("%zu bytes in place of %zu", at, total);
}

struct Head {
  std::uint64_t seed;
  std::uint64_t total;
};

void Work(int fd, const Head& head, bool client) {
  Random random{head.seed + (client ? 1 : 2)};
  if (random.Below(2) == 0) SetNonblock(fd, true);
  const std::uint64_t there = 2 * head.seed;
  std::thread writer(Write, fd, client ? there : there + 1, head.total,
                     Random{random.Next()});
  Read(fd, client ? there + 1 : there, head.total, Random{random.Next()});
  writer.join();
  CHECK_THAT(::close(fd) == 0);
}

void Finish() {
  Log("%d looks whose bytes were gone", gone.load());
  Barrier();
}

void Server(bool forks) {
  const int listener = ListenAndTell();
  Beside(forks, [&] {
    std::vector<std::thread> all;
    for (int i = 0; i < kThreads * kEach; ++i) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      CHECK_THAT(fd >= 0);
      all.emplace_back([fd] {
        Head head;
        RecvAll(fd, &head, sizeof head);
        Work(fd, head, false);
      });
    }
    for (std::thread& one : all) one.join();
  });
  ::close(listener);
  Finish();
}

void Client(bool forks) {
  const int port = static_cast<int>(Hear());
  Beside(forks, [&] {
    std::vector<std::thread> all;
    for (int i = 0; i < kThreads; ++i) {
      all.emplace_back([=] {
        Random random{Seed() + 1000 * static_cast<std::uint64_t>(i)};
        for (int k = 0; k < kEach; ++k) {
          const Head head{
              random.Next() >> 8,
              random.Below(random.Below(3) == 0 ? 3'000'000 : 300'000)};
          const int fd = Connect(port);
          SendAll(fd, &head, sizeof head);
          Work(fd, head, true);
        }
      });
    }
    for (std::thread& one : all) one.join();
  });
  Finish();
}

constexpr Options kOptions{.warm = false, .connect = false, .seconds = 60};

Case quiet(
    "churn", [](int) { Server(false); }, [](int) { Client(false); }, kOptions);
Case server_forks(
    "churn_server_forks", [](int) { Server(true); }, [](int) { Client(false); },
    kOptions);
Case client_forks(
    "churn_client_forks", [](int) { Server(false); }, [](int) { Client(true); },
    kOptions);
Case both_fork(
    "churn_both_fork", [](int) { Server(true); }, [](int) { Client(true); },
    kOptions);

}  // namespace
