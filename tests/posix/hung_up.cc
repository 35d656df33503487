// What poll, select and epoll say of the end of a connection.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

// poll() tells of a hung-up connection whatever it is asked for; select() only
// who reads, and else waits to its end.
Case select_hung_up(
    "select_hung_up",
    [](int fd) {
      char end;
      ::shutdown(fd, SHUT_WR);
      CHECK_THAT(::recv(fd, &end, 1, 0) == 0);
      Barrier();
    },
    [](int fd) {
      char end;
      CHECK_THAT(::recv(fd, &end, 1, 0) == 0);
      ::shutdown(fd, SHUT_WR);
      Barrier();
      int ended[2];
      CHECK_THAT(::pipe(ended) == 0);
      ::close(ended[1]);
      const auto select = [](const char* what, int out, int except) {
        fd_set outs, excepts;
        FD_ZERO(&outs);
        FD_ZERO(&excepts);
        if (out >= 0) FD_SET(out, &outs);
        for (const int one : {except, out}) {
          if (one >= 0) FD_SET(one, &excepts);
        }
        timeval time{0, 250'000};
        const std::uint64_t start = NowMs();
        Result(what, ::select(64, nullptr, &outs, &excepts, &time));
        Log("to its end %d, left %ld", NowMs() - start >= 249,
            static_cast<long>(time.tv_sec * 1'000'000 + time.tv_usec));
      };
      select("hung up", -1, fd);
      select("both", ended[0], fd);
      int other[2];
      CHECK_THAT(::pipe(other) == 0);
      std::thread writer([&] { CHECK_THAT(::write(other[1], "x", 1) == 1); });
      fd_set in, except;
      FD_ZERO(&in);
      FD_ZERO(&except);
      FD_SET(other[0], &in);
      FD_SET(fd, &except);
      FD_SET(ended[0], &except);
      Result("one written to", ::select(64, &in, nullptr, &except, nullptr));
      Log("in %d except %d %d", FD_ISSET(other[0], &in), FD_ISSET(fd, &except),
          FD_ISSET(ended[0], &except));
      writer.join();
      FD_ZERO(&in);
      FD_SET(fd, &in);
      Result("read", ::select(64, &in, nullptr, nullptr, nullptr));
      for (const int one : {ended[0], other[0], other[1]}) ::close(one);
    });

// The end lies behind what a read has taken that had room for more.
Case end_behind_a_read(
    "end_behind_a_read_with_room",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 20; ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        SendAll(fd, "behind", 6);
        ::shutdown(fd, SHUT_WR);
        Tell(0);
        char byte;
        CHECK_THAT(::recv(fd, &byte, 1, 0) == 0);
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      constexpr std::uint32_t kEnd = EPOLLIN | EPOLLRDHUP;
      int by_epoll = 0;
      int by_poll = 0;
      for (int i = 0; i < 20; ++i) {
        const int fd = Connect(port);
        Warm(fd);
        const int set = NewSet();
        Ctl(set, EPOLL_CTL_ADD, fd, kEnd);
        Hear();
        char got[64];
        CHECK_THAT(::recv(fd, got, sizeof got, 0) == 6);
        epoll_event event{};
        pollfd one{fd, POLLIN | POLLRDHUP, 0};
        if (i % 2 == 0) {
          CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
          by_epoll += event.events == kEnd;
        } else {
          CHECK_THAT(::poll(&one, 1, kLong) == 1);
          by_poll += one.revents == (POLLIN | POLLRDHUP);
        }
        ::close(set);
        ::close(fd);
      }
      Log("told of: %d %d", by_epoll, by_poll);
    },
    {.warm = false, .connect = false, .seconds = 60});

// The peer's end after one's own is that of the connection, and told as such in
// one report.
Case hup_at_once(
    "hup_with_the_end",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 3; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        Warm(fd);
        char byte;
        Result("recv", ::recv(fd, &byte, 1, 0));
        Barrier();
        ::shutdown(fd, SHUT_WR);
        Barrier();
        Barrier();
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (const std::uint32_t events :
           {std::uint32_t{EPOLLIN},
            EPOLLIN | static_cast<std::uint32_t>(EPOLLET),
            std::uint32_t{EPOLLIN | EPOLLRDHUP}}) {
        const int fd = Connect(port);
        Warm(fd);
        const int set = NewSet();
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd, events) == 0);
        LogWait("quiet", set, 0);
        ::shutdown(fd, SHUT_WR);
        LogWait("shut", set, 0);
        Barrier();
        Barrier();
        // (It has come: see OnlyFin.)
        int bytes = 0;
        CHECK_THAT(::ioctl(fd, FIONREAD, &bytes) == 0);
        LogWait("end", set, kLong);
        Barrier();
        ::close(fd);
        ::close(set);
      }
    },
    {.warm = false, .connect = false});

// Room to write is no edge for who asks for input alone, though the peer's end
// is there all the time.
Case room_is_no_edge(
    "room_is_no_edge_of_input",
    [](int fd) {
      ::shutdown(fd, SHUT_WR);
      Barrier();
      std::vector<char> got(4 << 20);
      RecvAll(fd, got.data(), got.size());
      Barrier();
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd,
                     EPOLLIN | static_cast<std::uint32_t>(EPOLLET)) == 0);
      Barrier();
      // (It has come: see OnlyFin.)
      int bytes = 0;
      CHECK_THAT(::ioctl(fd, FIONREAD, &bytes) == 0);
      LogWait("end", set, kLong);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      SkipEdges(set);
      SetNonblock(fd, true);
      const std::vector<char> all(4 << 20);
      SendAll(fd, all.data(), all.size());
      Barrier();
      int moves = 2;
      LogNoEdge("room", set, &moves);
      Barrier();
    });

// A server that has room for one client: who comes when the one before has
// closed is not seen before that.
constexpr int kGuests = 30;

// `beside`: another descriptor that is waited for, or -1.
int StillThere(int listener, bool by_poll, int beside = -1) {
  const int set = NewSet();
  Ctl(set, EPOLL_CTL_ADD, listener, EPOLLIN);
  if (beside >= 0) Ctl(set, EPOLL_CTL_ADD, beside, EPOLLIN);
  int still = 0;
  std::vector<int> guests;
  for (int come = 0; come < kGuests;) {
    std::vector<int> ready;
    if (by_poll) {
      std::vector<pollfd> all = {{listener, POLLIN, 0}};
      for (const int guest : guests) all.push_back({guest, POLLIN, 0});
      CHECK_THAT(::poll(all.data(), all.size(), kLong) > 0);
      for (std::size_t i = all.size(); i-- > 0;) {
        if (all[i].revents != 0) ready.push_back(all[i].fd);
      }
    } else {
      epoll_event events[4];
      const int n = ::epoll_wait(set, events, 4, kLong);
      CHECK_THAT(n > 0);
      for (int i = 0; i < n; ++i) ready.push_back(events[i].data.fd);
    }
    // (In one report the kernel itself has them in any order.)
    std::stable_partition(ready.begin(), ready.end(),
                          [&](int fd) { return fd != listener; });
    for (const int fd : ready) {
      if (fd == listener) {
        if (!guests.empty()) ++still;
        guests.push_back(::accept(listener, nullptr, nullptr));
        CHECK_THAT(guests.back() >= 0);
        Warm(guests.back());
        Ctl(set, EPOLL_CTL_ADD, guests.back(), EPOLLIN);
        ++come;
        continue;
      }
      char byte;
      CHECK_THAT(::recv(fd, &byte, 1, 0) == 0);
      ::close(fd);
      std::erase(guests, fd);
    }
  }
  for (const int guest : guests) ::close(guest);
  ::close(set);
  return still;
}

void ComeAndGo(int port, int times) {
  for (int i = 0; i < times; ++i) {
    const int fd = Connect(port);
    Warm(fd);
    ::close(fd);
  }
}

Case one_at_a_time(
    "closed_before_the_next",
    [](int) {
      const int listener = ListenAndTell();
      const int by_epoll = StillThere(listener, false);
      const int by_poll = StillThere(listener, true);
      // (Else some close while they are on their way to a lane: then the end
      // comes when they are there.  From another host it comes by TCP.)
      const bool lane = OnLanesInMemory();
      Log("still there: %d %d", lane ? by_epoll : 0, lane ? by_poll : 0);
    },
    [](int) { ComeAndGo(HearPort(), 2 * kGuests); },
    {.warm = false, .connect = false, .seconds = 60});

// The set asks the kernel whenever a lane has something: what the kernel has
// may not come without the end, either.
Case beside_tcp(
    "closed_before_the_next_beside_tcp",
    [](int) {
      const int listener = ListenAndTell();
      const int beside = Accept(listener);
      StayOnTcp(beside);
      const int still = StillThere(listener, false, beside);
      Log("still there: %d", OnLanesInMemory() ? still : 0);
      ::close(beside);
    },
    [](int) {
      const int port = HearPort();
      const int beside = Connect(port);
      StayOnTcp(beside);
      ComeAndGo(port, kGuests);
      ::close(beside);
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
