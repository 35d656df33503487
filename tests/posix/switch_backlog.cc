// A switch that finds a backlog: megabytes that TCP has brought and nobody has
// read.  The engine reads them ahead of the application, which must go on being
// told of them, however it waits, with nothing new coming.  And one that finds
// TCP or the ring full.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kRequest = 220;
constexpr std::size_t kReply = 5;
constexpr std::size_t kRequests = 12'000;
constexpr int kConnections = 12;
constexpr int kLong = 8000;
constexpr int kRoom = 3000;

enum class Way { kPoll, kLevel, kEdge, kOneshot, kSelect, kRecv };

// Waits until `fd` can be read (or written, if so asked).
class Waiter {
 public:
  Waiter(Way way, int fd) : way_(way), fd_(fd), set_(::epoll_create1(0)) {
    CHECK_THAT(set_ >= 0);
    epoll_event event{};
    event.events = EPOLLIN | (way == Way::kEdge      ? EPOLLET
                              : way == Way::kOneshot ? EPOLLONESHOT
                                                     : 0u);
    CHECK_THAT(::epoll_ctl(set_, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  ~Waiter() { ::close(set_); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void Readable(std::size_t so_far) {
    int n = 1;
    epoll_event event{};
    switch (way_) {
      case Way::kPoll: {
        pollfd one{fd_, POLLIN, 0};
        n = ::poll(&one, 1, kLong);
        break;
      }
      case Way::kSelect: {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(fd_, &in);
        timeval time{kLong / 1000, 0};
        n = ::select(fd_ + 1, &in, nullptr, nullptr, &time);
        break;
      }
      case Way::kRecv:
        break;
      case Way::kOneshot:
        event.events = EPOLLIN | EPOLLONESHOT;
        CHECK_THAT(::epoll_ctl(set_, EPOLL_CTL_MOD, fd_, &event) == 0);
        [[fallthrough]];
      default:
        n = ::epoll_wait(set_, &event, 1, kLong);
    }
    if (n != 1) Fail("%zu bytes were read, and no more are told of", so_far);
  }

 private:
  Way way_;
  int fd_;
  int set_;
};

// Answers each request with a few bytes, as soon as it has all of it.
void Serve(Way way) {
  const int listener = ListenAndTell();
  std::vector<char> buffer(16 * 1024);
  for (int c = 0; c < Scale(kConnections); ++c) {
    const int fd = Accept(listener);
    SetNonblock(fd, way != Way::kRecv);
    Waiter waiter(way, fd);
    std::size_t got = 0;
    std::size_t answered = 0;
    bool drained = true;
    while (got < kRequests * kRequest) {
      // (An edge is owed only to one who has read all.)
      if (way != Way::kEdge || drained) waiter.Readable(got);
      const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
      drained = n < 0;
      if (n < 0 && errno == EAGAIN) continue;
      CHECK_THAT(n > 0);
      CHECK_THAT(IsPattern(1, got, buffer.data(), static_cast<std::size_t>(n)));
      got += static_cast<std::size_t>(n);
      while ((answered + 1) * kRequest <= got) {
        SendAll(fd, "+OK\r\n", kReply);
        ++answered;
      }
    }
    // Until the other end has closed.
    SetNonblock(fd, false);
    CHECK_THAT(::recv(fd, buffer.data(), buffer.size(), 0) == 0);
    ::close(fd);
  }
  ::close(listener);
  Log("done");
}

// Writes as fast as it can, and takes the answers as they come.
void Ask() {
  const int port = HearPort();
  std::vector<char> text(kRequests * kRequest);
  Pattern(1, 0, text.data(), text.size());
  std::vector<char> answers(64 * 1024);
  for (int c = 0; c < Scale(kConnections); ++c) {
    const int fd = Connect(port);
    SetNonblock(fd, true);
    std::size_t sent = 0;
    std::size_t got = 0;
    while (got < kRequests * kReply) {
      pollfd one{fd, POLLIN, 0};
      if (sent < text.size()) one.events |= POLLOUT;
      if (::poll(&one, 1, kLong) != 1) {
        Fail("connection %d: %zu sent, %zu answered", c, sent, got / kReply);
      }
      if ((one.revents & POLLIN) != 0) {
        const ssize_t n = ::recv(fd, answers.data(), answers.size(), 0);
        CHECK_THAT(n > 0 || (n < 0 && errno == EAGAIN));
        if (n > 0) got += static_cast<std::size_t>(n);
      }
      if ((one.revents & POLLOUT) != 0) {
        const std::size_t left = text.size() - sent;
        const ssize_t n =
            ::send(fd, text.data() + sent, left < 65'536 ? left : 65'536, 0);
        CHECK_THAT(n > 0 || (n < 0 && errno == EAGAIN));
        if (n > 0) sent += static_cast<std::size_t>(n);
      }
    }
    CHECK_THAT(got == kRequests * kReply);
    ::close(fd);
  }
  Log("done");
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 120};
Case poll_case(
    "backlog_poll", [](int) { Serve(Way::kPoll); }, [](int) { Ask(); }, kAlone);
Case level_case(
    "backlog_epoll_level", [](int) { Serve(Way::kLevel); }, [](int) { Ask(); },
    kAlone);
Case edge_case(
    "backlog_epoll_edge", [](int) { Serve(Way::kEdge); }, [](int) { Ask(); },
    kAlone);
Case oneshot_case(
    "backlog_epoll_oneshot", [](int) { Serve(Way::kOneshot); },
    [](int) { Ask(); }, kAlone);
Case select_case(
    "backlog_select", [](int) { Serve(Way::kSelect); }, [](int) { Ask(); },
    kAlone);
Case recv_case(
    "backlog_recv", [](int) { Serve(Way::kRecv); }, [](int) { Ask(); }, kAlone);

// --- Room.  A thread that sleeps for it is told, too

// Sends so much as there is room, and sleeps for more.
void SendWithRoom(int fd, int set, std::size_t total) {
  std::vector<char> bytes(64 << 10);
  SetNonblock(fd, true);
  for (std::size_t sent = 0; sent < total;) {
    const ssize_t n =
        ::send(fd, bytes.data(), std::min(bytes.size(), total - sent), 0);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    CHECK_THAT(errno == EAGAIN);
    epoll_event event{};
    if (::epoll_wait(set, &event, 1, kRoom) != 1) {
      Fail("%zu bytes were sent, and no more room is told of", sent);
    }
  }
  Log("sent %zu", total);
}

void Register(int set, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

// TCP is full when the stream comes to the engine, and has room afterwards.
// The set has another stream on a lane.
void SendAtTheMove(int warm, std::uint32_t how) {
  const int fd = Connect(HearPort());
  const int set = ::epoll_create1(0);
  Register(set, warm, EPOLLIN);
  Register(set, fd, EPOLLOUT | how);
  SendWithRoom(fd, set, 16 << 20);
  ::close(fd);
  ::close(set);
}
void ReadLate(int) {
  const int listener = ListenAndTell();
  const int fd = Accept(listener);
  ::usleep(100'000);
  // Enough that this end looks for a lane, and not enough that TCP has room.
  std::vector<char> bytes(96 << 10);
  RecvAll(fd, bytes.data(), bytes.size());
  ::usleep(100'000);
  LogDrain(fd);
}
Case room_level("room_at_the_move_level", ReadLate,
                [](int warm) { SendAtTheMove(warm, 0); });
Case room_edge("room_at_the_move_edge", ReadLate,
               [](int warm) { SendAtTheMove(warm, EPOLLET); });

// The ring is full when the stream comes onto its lane, and its peer does not
// read.  Over TCP all of this has room.
Case full_at_the_promotion(
    "full_at_the_promotion",
    [](int fd) {
      Echo(fd, 4);
      Barrier();
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 4);
      ::usleep(200'000);  // there is a lane, and nobody has proposed
      const int set = ::epoll_create1(0);
      Register(set, fd, EPOLLOUT);
      SendWithRoom(fd, set, 1 << 20);
      ::close(set);
      Barrier();
    },
    {.warm = false});

}  // namespace
