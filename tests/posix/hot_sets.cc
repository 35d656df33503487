// An epoll set of more connections than can be looked at one by one, of which
// few are used again and again and others now and then: whichever way a
// request is found, it is found.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr int kConnections = 150;
constexpr int kBytes = 4;  // of a request

// An answer comes in pieces, of which none is to wait for an acknowledgement.
void SetNoDelay(int fd) {
  const int on = 1;
  CHECK_THAT(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
}

void Watch(int set, int op, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  CHECK_THAT(::epoll_ctl(set, op, fd, &event) == 0);
}

// Accepts and watches them all.
void AcceptAll(int set, int (&all)[kConnections]) {
  const int listener = ListenAndTell();
  for (int& fd : all) {
    fd = Accept(listener);
    SetNoDelay(fd);
    Watch(set, EPOLL_CTL_ADD, fd, EPOLLIN);
  }
  ::close(listener);
}

// What is there is taken a piece at a time, so that some is left for the next
// wait; the answer is the same bytes.  True at the end.
bool Echo(int fd, Random* random) {
  char text[kBytes];
  const ssize_t n = ::recv(fd, text, 1 + random->Below(kBytes), MSG_DONTWAIT);
  if (n < 0) {
    CHECK_THAT(errno == EAGAIN);  // another thread was first
    return false;
  }
  SendAll(fd, text, static_cast<std::size_t>(n));
  return n == 0;
}

// `changes`: registrations are changed at times: to edges and back, deleted
// and added again.
void Serve(int threads, bool changes) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  int all[kConnections];
  AcceptAll(set, all);
  std::atomic<int> open{kConnections};
  const auto work = [&](std::uint64_t seed) {
    Random random{seed};
    epoll_event events[8];
    while (open > 0) {
      // (With a time: the other thread may have closed the last one.)
      const int n = ::epoll_wait(set, events, 8, threads == 1 ? -1 : 200);
      CHECK_THAT(n >= 0 || errno == EINTR);
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        if (Echo(fd, &random)) {
          if (::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) == 0) --open;
          continue;
        }
        if (!changes || random.Below(50) != 0) continue;
        switch (random.Below(3)) {
          case 0:
            Watch(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
            Watch(set, EPOLL_CTL_MOD, fd, EPOLLIN);
            break;
          case 1:
            Watch(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
            Watch(set, EPOLL_CTL_MOD, fd, EPOLLIN);
            break;
          default:
            CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) == 0);
            Watch(set, EPOLL_CTL_ADD, fd, EPOLLIN);
        }
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, Seed() + i);
  work(Seed());
  for (auto& one : others) one.join();
  for (const int fd : all) ::close(fd);
  Log("all closed");
}

// Two sets, a thread for each: now and then a connection goes to the other one.
void ServeTwoSets(int) {
  const int sets[2] = {::epoll_create1(EPOLL_CLOEXEC),
                       ::epoll_create1(EPOLL_CLOEXEC)};
  int all[kConnections];
  AcceptAll(sets[0], all);
  std::atomic<int> open{kConnections};
  const auto work = [&](int own) {
    Random random{Seed() + static_cast<std::uint64_t>(own)};
    epoll_event events[8];
    while (open > 0) {
      // (With a time: the other thread may have closed the last one.)
      const int n = ::epoll_wait(sets[own], events, 8, 200);
      CHECK_THAT(n >= 0 || errno == EINTR);
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        const bool ended = Echo(fd, &random);
        if (!ended && random.Below(100) != 0) continue;
        Watch(sets[own], EPOLL_CTL_DEL, fd, 0);
        ended ? static_cast<void>(--open)
              : Watch(sets[1 - own], EPOLL_CTL_ADD, fd, EPOLLIN);
      }
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  for (const int fd : all) ::close(fd);
  Log("all closed");
}

// Takes what the set tells, with room for so many, until so many bytes have
// come.  Calls each(fd, text, size).  Returns how many bytes have not come: 0,
// or less if there were more.
template <int kRoom, class Each>
int TakeBytes(int set, int bytes, Each&& each) {
  while (bytes > 0) {
    epoll_event events[kRoom];
    const int n = ::epoll_wait(set, events, kRoom, -1);
    CHECK_THAT(n > 0);
    for (int i = 0; i < n; ++i) {
      char text[kBytes];
      const ssize_t got = ::recv(events[i].data.fd, text, kBytes, 0);
      CHECK_THAT(got > 0);
      each(events[i].data.fd, text, static_cast<std::size_t>(got));
      bytes -= static_cast<int>(got);
    }
  }
  return bytes;
}

class Client {
 public:
  Client() {
    const int port = HearPort();
    for (int i = 0; i < kConnections; ++i) {
      fds_.push_back(Connect(port));
      SetNoDelay(fds_.back());
      Watch(set_, EPOLL_CTL_ADD, fds_.back(), EPOLLIN);
    }
  }

  void Run() {
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < kConnections; ++i) Burst(i, 1);
    }
    int answers = 0;
    for (int moves = 0; moves < 8; ++moves) {
      std::rotate(fds_.begin(), fds_.begin() + 23, fds_.end());
      for (int i = 0; i < Scale(1000); ++i) {
        const int hot = 6;
        // Some on hot ones alone, some on one that is not as well.
        const int first = static_cast<int>(random_.Below(hot));
        const int count = 1 + static_cast<int>(random_.Below(4));
        answers += Burst(first, count);
        if (random_.Below(8) == 0) {
          answers += Burst(
              hot + static_cast<int>(random_.Below(kConnections - hot)), 1);
        }
        if (random_.Below(200) == 0) {
          // The other end falls asleep.
          epoll_event none;
          CHECK_THAT(::epoll_wait(set_, &none, 1, 2) == 0);
        }
      }
    }
    Log("answered: %d", answers);
    for (const int fd : fds_) ::close(fd);
  }

 private:
  // A request on each of so many, beginning with `first`; takes the answers.
  int Burst(int first, int count) {
    const auto fd = [&](int i) {
      return fds_[static_cast<std::size_t>((first + i) % kConnections)];
    };
    for (int i = 0; i < count; ++i) SendAll(fd(i), "abcd", kBytes);
    const int left = TakeBytes<4>(set_, count * kBytes, [](auto...) {});
    CHECK_THAT(left == 0);
    return count;
  }

  const int set_ = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<int> fds_;
  Random random_{Seed()};
};

void Ask(int) { Client().Run(); }

// Two connections always have something, and there is room for one event: the
// others have their turn all the same.
constexpr int kFloods = 2;

void ServeOneByOne(int) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  int all[kConnections];
  AcceptAll(set, all);
  for (int open = kConnections; open > 0;) {
    epoll_event event{};
    CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
    const int fd = event.data.fd;
    // (In the end what the floods have left, which is megabytes where they have
    // gone to TCP: not 64 bytes at a time.)
    char text[65536];
    const ssize_t n = ::recv(fd, text, open > kFloods ? 64 : sizeof text, 0);
    CHECK_THAT(n >= 0);
    if (n == 0) {
      Watch(set, EPOLL_CTL_DEL, fd, 0);
      --open;
    } else if (std::find(all, all + kFloods, fd) == all + kFloods) {
      SendAll(fd, text, static_cast<std::size_t>(n));
    }
  }
  for (const int fd : all) ::close(fd);
  Log("all closed");
}

void AskBesideFloods(int) {
  const int port = HearPort();
  std::vector<int> fds;
  for (int i = 0; i < kConnections; ++i) {
    fds.push_back(Connect(port));
    SetNoDelay(fds.back());
  }
  const auto ask = [](int fd) {
    char text[kBytes];
    SendAll(fd, "abcd", kBytes);
    RecvAll(fd, text, kBytes);
  };
  for (int round = 0; round < 12; ++round) {
    for (int i = kFloods; i < kConnections; ++i) {
      ask(fds[static_cast<std::size_t>(i)]);
    }
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> floods;
  for (int i = 0; i < kFloods; ++i) {
    floods.emplace_back([&, fd = fds[static_cast<std::size_t>(i)]] {
      const std::vector<char> much(4096);
      while (!stop) SendAll(fd, much.data(), much.size());
    });
  }
  Random random{Seed()};
  for (int i = 0; i < Scale(300); ++i) {
    ask(fds[kFloods + random.Below(kConnections - kFloods)]);
  }
  stop = true;
  for (auto& one : floods) one.join();
  Log("all answered");
  for (const int fd : fds) ::close(fd);
}

// A few connections always have something.  A request on any other is told
// within so many waits.
constexpr int kAlways = 4;
constexpr int kRequests = 50;
constexpr int kTurns = 12;
constexpr int kWaits = 4;

class Waits {
 public:
  Waits() { AcceptAll(set_, all_); }

  // Takes what is told, and answers it, until so many bytes have come.
  void Answer(int bytes) {
    TakeBytes<8>(set_, bytes, [](int fd, const char* text, std::size_t got) {
      SendAll(fd, text, got);
    });
  }
  // One wait, which takes a byte of each that is told.  Returns whether one was
  // told that does not always have something.
  bool Wait(int room) {
    epoll_event events[8];
    const int n = ::epoll_wait(set_, events, room, -1);
    CHECK_THAT(n > 0);
    bool other = false;
    for (int i = 0; i < n; ++i) {
      char byte;
      const int fd = events[i].data.fd;
      CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
      other |= std::find(all_, all_ + kAlways, fd) == all_ + kAlways;
    }
    return other;
  }

 private:
  const int set_ = ::epoll_create1(EPOLL_CLOEXEC);
  int all_[kConnections];
};

void ServeInTurn(int) {
  Waits waits;
  waits.Answer(kTurns * kConnections * kBytes);
  Hear();  // kAlways connections have something
  for (const int room : {8, 2}) {
    for (int i = 0; i < 400; ++i) waits.Wait(room);
    int most = 0;
    for (int i = 0; i < kRequests; ++i) {
      Tell(0);
      Hear();  // the request has been sent
      int count = 1;
      while (!waits.Wait(room)) ++count;
      most = std::max(most, count);
    }
    if (most > kWaits) Log("told after %d waits", most);
  }
  Log("all told");
  Tell(0);
}

void AskInTurn(int) {
  const int port = HearPort();
  std::vector<int> fds;
  for (int i = 0; i < kConnections; ++i) {
    fds.push_back(Connect(port));
    SetNoDelay(fds.back());
  }
  for (int i = 0; i < kTurns * kConnections; ++i) {
    char text[kBytes];
    const int fd = fds[static_cast<std::size_t>(i % kConnections)];
    SendAll(fd, "abcd", kBytes);
    RecvAll(fd, text, kBytes);
  }
  // A connection amid its switch may have bytes that have not left this end,
  // and are told when the conductors have had their CPU.
  ::poll(nullptr, 0, 300);
  const std::vector<char> much(60'000);
  for (std::size_t i = 0; i < kAlways; ++i) {
    SendAll(fds[i], much.data(), much.size());
  }
  Tell(0);
  for (std::size_t i = 0; i < 2 * kRequests; ++i) {
    Hear();
    SendAll(fds[kAlways + i % (kConnections - kAlways)], "a", 1);
    Tell(0);
  }
  Hear();
  Log("all sent");
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 60};

Case level(
    "level", [](int) { Serve(1, false); }, Ask, kAlone);
Case changed(
    "changed", [](int) { Serve(1, true); }, Ask, kAlone);
Case floods("beside_floods", ServeOneByOne, AskBesideFloods, kAlone);
Case in_turn("in_turn", ServeInTurn, AskInTurn, kAlone);
Case two_sets("two_sets", ServeTwoSets, Ask, kAlone);
Case two_threads(
    "two_threads", [](int) { Serve(2, false); }, Ask, kAlone);

}  // namespace
