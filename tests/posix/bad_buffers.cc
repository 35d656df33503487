// Buffers that are not there, in part or at all: the kernel says EFAULT, and
// the stream goes on.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "tests/posix/edge.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;
using edge::Edge;
using edge::kHole;
using edge::Name;

constexpr std::size_t kPage = 4096;
struct Call {
  const char* name;
  bool flags;  // it has some
  std::function<ssize_t(int fd, iovec* iov, int count, int flags)> call;
};

msghdr Message(iovec* iov, int count) {
  msghdr message{};
  message.msg_iov = iov;
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

const Call kSends[] = {
    {"write", false,
     [](int fd, iovec* iov, int, int) {
       return ::write(fd, iov->iov_base, iov->iov_len);
     }},
    {"send", true,
     [](int fd, iovec* iov, int, int flags) {
       return ::send(fd, iov->iov_base, iov->iov_len, flags);
     }},
    {"sendto", true,
     [](int fd, iovec* iov, int, int flags) {
       return ::sendto(fd, iov->iov_base, iov->iov_len, flags, nullptr, 0);
     }},
    {"writev", false,
     [](int fd, iovec* iov, int count, int) {
       return ::writev(fd, iov, count);
     }},
    {"pwritev2", false,
     [](int fd, iovec* iov, int count, int) {
       return ::pwritev2(fd, iov, count, -1, 0);
     }},
    {"sendmsg", true,
     [](int fd, iovec* iov, int count, int flags) {
       const msghdr message = Message(iov, count);
       return ::sendmsg(fd, &message, flags);
     }},
    {"sendmmsg", true,
     [](int fd, iovec* iov, int count, int flags) {
       mmsghdr one{Message(iov, count), 0};
       const int n = ::sendmmsg(fd, &one, 1, flags);
       return n < 0 ? n : static_cast<ssize_t>(one.msg_len);
     }},
};

const Call kReceives[] = {
    {"read", false,
     [](int fd, iovec* iov, int, int) {
       return ::read(fd, iov->iov_base, iov->iov_len);
     }},
    {"recv", true,
     [](int fd, iovec* iov, int, int flags) {
       return ::recv(fd, iov->iov_base, iov->iov_len, flags);
     }},
    {"recvfrom", true,
     [](int fd, iovec* iov, int, int flags) {
       return ::recvfrom(fd, iov->iov_base, iov->iov_len, flags, nullptr,
                         nullptr);
     }},
    {"readv", false,
     [](int fd, iovec* iov, int count, int) {
       return ::readv(fd, iov, count);
     }},
    {"preadv2", false,
     [](int fd, iovec* iov, int count, int) {
       return ::preadv2(fd, iov, count, -1, 0);
     }},
    {"recvmsg", true,
     [](int fd, iovec* iov, int count, int flags) {
       msghdr message = Message(iov, count);
       return ::recvmsg(fd, &message, flags);
     }},
    {"recvmmsg", true,
     [](int fd, iovec* iov, int count, int flags) {
       mmsghdr one{Message(iov, count), 0};
       const int n = ::recvmmsg(fd, &one, 1, flags, nullptr);
       return n < 0 ? n : static_cast<ssize_t>(one.msg_len);
     }},
};

// What both ends know of the stream.
struct Stream {
  int fd;
  std::uint64_t sent = 0;  // by the client
  std::uint64_t back = 0;  // by the server
};

// Round trips with good buffers: nothing has been lost, nor come twice.
void Works(Stream& stream) {
  for (const std::size_t n : {std::size_t{5}, std::size_t{100},
                              std::size_t{3'000}, std::size_t{40'000}}) {
    std::vector<char> bytes(n);
    const auto one = [&](bool client, std::uint64_t& at) {
      if (client == IsClient()) {
        Pattern(client, at, bytes.data(), n);
        SendAll(stream.fd, bytes.data(), n);
      } else {
        RecvAll(stream.fd, bytes.data(), n);
        CHECK_THAT(IsPattern(client, at, bytes.data(), n));
      }
      at += n;
    };
    one(true, stream.sent);
    one(false, stream.back);
  }
}

// What has been sent, as the sender was told, comes.
void Comes(Stream& stream) {
  const auto n = static_cast<std::size_t>(Hear());
  std::vector<char> bytes(n);
  RecvAll(stream.fd, bytes.data(), n);
  CHECK_THAT(IsPattern(true, stream.sent, bytes.data(), n));
  stream.sent += n;
}

// A call whose buffer has `good` bytes and then `bad` others.  How many of the
// good ones the kernel takes depends on how it cuts them.
void SendBad(Stream& stream, const Call& call, const Edge& edge,
             std::size_t good, std::size_t bad, int flags, bool pieces) {
  Pattern(true, stream.sent, edge.end - good, good);
  iovec iov[2] = {{edge.end - good, good + bad}, {edge.end, bad}};
  if (pieces) iov[0].iov_len = good;
  ssize_t n;
  // (There may be no room yet, which TCP, too, says first.)
  while ((n = call.call(stream.fd, iov, pieces ? 2 : 1, flags)) < 0 &&
         errno == EAGAIN) {
    pollfd one{stream.fd, POLLOUT, 0};
    CHECK_THAT(::poll(&one, 1, 10'000) == 1);
  }
  if (n < 0 || static_cast<std::size_t>(n) > good || good == 0) {
    if (n >= 0)
      Fail("%s: %zd of %zu good, %zu bad, pieces %d", call.name, n, good, bad,
           pieces);
    if (errno != EFAULT || good == 0) Result(call.name, n);
  }
  const ssize_t taken = n < 0 ? 0 : n;
  Tell(taken);
  stream.sent += static_cast<std::uint64_t>(taken);
}

struct Shape {
  std::size_t good;
  std::size_t bad;
};
constexpr Shape kShapes[] = {
    {0, 1},       {0, 4},
    {0, 8},       {0, 20},
    {0, 40},      {0, 100},
    {0, 112},     {0, 113},
    {0, 3'000},   {0, 5'000},
    {0, 20'000},  {0, 300'000},
    {1, 3},       {7, 1},
    {9, 20},      {4, 100},
    {60, 40},     {50, 3'000},
    {5'000, 10},  {5'000, 20'000},
    {100'000, 1}, {40'000, 200'000},
};

void Sends(int fd, bool nonblocking) {
  Stream stream{fd};
  if (IsClient() && nonblocking) SetNonblock(fd, true);
  for (const int protection : {kHole, PROT_NONE}) {
    const Edge edge(protection);
    for (const Call& call : kSends) {
      if (IsClient()) Log("%s %s", Name(protection), call.name);
      for (const Shape& shape : kShapes) {
        for (const bool pieces : {false, true}) {
          if (IsClient()) {
            SendBad(stream, call, edge, shape.good, shape.bad, 0,
                    pieces && shape.good > 0);
          } else {
            Comes(stream);
          }
        }
      }
      if (IsClient() && nonblocking) SetNonblock(fd, false);
      Works(stream);
      if (IsClient() && nonblocking) SetNonblock(fd, true);
    }
  }
  Barrier();
}

Case send_blocking(
    "send_blocking", [](int fd) { Sends(fd, false); },
    [](int fd) { Sends(fd, false); });
Case send_nonblocking(
    "send_nonblocking", [](int fd) { Sends(fd, true); },
    [](int fd) { Sends(fd, true); });

// A message of `length` bytes waits; a call has room for `good` of them, and
// what lies behind is bad.
void RecvBad(Stream& stream, const Call& call, const Edge& edge,
             std::size_t length, std::size_t good, int flags, bool pieces) {
  std::vector<char> all(length);
  // (MSG_PEEK and MSG_WAITALL: until all of it is there.)
  CHECK_THAT(::recv(stream.fd, all.data(), length, MSG_PEEK | MSG_WAITALL) ==
             static_cast<ssize_t>(length));
  iovec iov[2] = {{edge.end - good, good + kPage}, {edge.end, kPage}};
  if (pieces) iov[0].iov_len = good;
  iov[pieces ? 1 : 0].iov_len += length;
  const ssize_t n = call.call(stream.fd, iov, pieces ? 2 : 1, flags);
  std::size_t taken = n < 0 ? 0 : static_cast<std::size_t>(n);
  if (taken > std::min(good, length))
    Fail("%s: %zu of %zu, good %zu, pieces %d", call.name, taken, length, good,
         pieces);
  CHECK_THAT(IsPattern(false, stream.back, edge.end - good, taken));
  // (Of what has come in pieces some may be taken.)
  if (good == 0 || good >= length || length <= 100 || n == 0 ||
      (n < 0 && errno != EFAULT)) {
    Result(call.name, n);
  }
  if ((flags & MSG_PEEK) != 0) taken = 0;
  stream.back += taken;
  std::vector<char> rest(length - taken);
  RecvAll(stream.fd, rest.data(), rest.size());
  CHECK_THAT(IsPattern(false, stream.back, rest.data(), rest.size()));
  stream.back += rest.size();
}

struct Room {
  std::size_t length;
  std::size_t good;
};
constexpr Room kRooms[] = {
    {1, 0},      {4, 0},   {8, 0},     {20, 0},
    {40, 0},     {100, 0}, {113, 0},   {3'000, 0},
    {30'000, 0}, {4, 4},   {100, 100}, {3'000, 3'000},
    {100, 50},   {10, 3},  {3'000, 5}, {30'000, 20'000},
};

void Receives(int fd, int flags) {
  Stream stream{fd};
  for (const int protection : {kHole, PROT_NONE, PROT_READ}) {
    const Edge edge(protection);
    for (const Call& call : kReceives) {
      if (flags != 0 && !call.flags) continue;
      if (IsClient()) Log("%s %s", Name(protection), call.name);
      for (const Room& room : kRooms) {
        for (const bool pieces : {false, true}) {
          if (IsClient()) {
            RecvBad(stream, call, edge, room.length, room.good, flags,
                    pieces && room.good > 0);
          } else {
            std::vector<char> bytes(room.length);
            Pattern(false, stream.back, bytes.data(), bytes.size());
            SendAll(fd, bytes.data(), bytes.size());
            stream.back += room.length;
          }
          Barrier();
        }
      }
      Works(stream);
    }
  }
  Barrier();
}

void RecvSome(int fd) { Receives(fd, 0); }
void RecvNow(int fd) { Receives(fd, MSG_DONTWAIT); }
void Peek(int fd) { Receives(fd, MSG_PEEK); }
Case recv_blocking("recv_blocking", RecvSome, RecvSome);
Case recv_nonblocking("recv_nonblocking", RecvNow, RecvNow);
Case peek("peek", Peek, Peek);

// A buffer that goes bad while the call waits for what is to come into it.
Case waits(
    "waits",
    [](int fd) {
      Barrier();
      SendAll(fd, "0123456789", 10);
      Barrier();
    },
    [](int fd) {
      const Edge edge(kHole);
      Barrier();
      Result("recv", ::recv(fd, edge.end, 10, 0));
      Result("all", ::recv(fd, edge.end, 10, MSG_WAITALL));
      Result("part of all", ::recv(fd, edge.end - 4, 10, MSG_WAITALL));
      char text[11] = {};
      RecvAll(fd, text, 10);
      Log("%s", text);
      Barrier();
    });

// What the mask of a wait blocks, faults with all others, it does not block for
// what the wait itself tells, and has no room for.
Case masked(
    "waits_with_a_mask",
    [](int fd) {
      const auto peer = static_cast<pid_t>(Hear());
      for (int i = 0; i < 3; ++i) {
        Barrier();
        AwaitAsleep(peer, peer);
        SendAll(fd, "1", 1);
        Barrier();
      }
    },
    [](int fd) {
      Tell(::getpid());
      const Edge hole(PROT_NONE);
      sigset_t mask;
      ::sigfillset(&mask);
      const timespec limit{20, 0};
      char byte;
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = 7;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      Barrier();
      Result("epoll_pwait",
             ::epoll_pwait(set, reinterpret_cast<epoll_event*>(hole.end), 4,
                           20000, &mask));
      Result("then", ::epoll_pwait(set, &event, 1, 20000, &mask));
      RecvAll(fd, &byte, 1);
      ::close(set);
      Barrier();
      // What is to be told goes bad while the call waits.
      const int self = ::gettid();
      const auto goes_bad = [self](char* page) {
        return std::thread([self, page] {
          AwaitAsleep(::getpid(), self);
          CHECK_THAT(::mprotect(page, kPage, PROT_READ) == 0);
          Barrier();
        });
      };
      CHECK_THAT(::mprotect(hole.end, kPage, PROT_READ | PROT_WRITE) == 0);
      auto* const one = reinterpret_cast<pollfd*>(hole.end);
      *one = {fd, POLLIN, 0};
      {
        std::thread bad = goes_bad(hole.end);
        Result("ppoll", ::ppoll(one, 1, &limit, &mask));
        bad.join();
      }
      RecvAll(fd, &byte, 1);
      Barrier();
      CHECK_THAT(::mprotect(hole.end, kPage, PROT_READ | PROT_WRITE) == 0);
      auto* const in = reinterpret_cast<fd_set*>(hole.end);
      FD_ZERO(in);
      FD_SET(fd, in);
      {
        std::thread bad = goes_bad(hole.end);
        Result("pselect",
               ::pselect(fd + 1, in, nullptr, nullptr, &limit, &mask));
        bad.join();
      }
      RecvAll(fd, &byte, 1);
      Barrier();
    });

// What is to be told may go bad at any moment of a call.
Case goes_bad_amid(
    "goes_bad_amid",
    [](int fd) {
      SendAll(fd, "1", 1);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 1);
      const Edge edge(PROT_READ | PROT_WRITE);
      auto* const one = reinterpret_cast<pollfd*>(edge.end);
      auto* const in = reinterpret_cast<fd_set*>(edge.end + 1024);
      int beside[2];  // a descriptor of the kernel's, with nothing to tell
      CHECK_THAT(::pipe(beside) == 0);
      one[0] = {fd, POLLIN, 0};
      one[1] = {beside[0], POLLIN, 0};
      auto* const told = reinterpret_cast<epoll_event*>(edge.end + 2048);
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, beside[0], &event) == 0);
      std::atomic<bool> over{false};
      std::thread changes([&] {
        for (int i = 0; i < 20000; ++i) {
          CHECK_THAT(::mprotect(edge.end, kPage, PROT_READ) == 0);
          CHECK_THAT(::mprotect(edge.end, kPage, PROT_READ | PROT_WRITE) == 0);
        }
        over = true;
      });
      bool right = true;
      while (!over) {
        int n = ::poll(one, 2, 0);
        right = right && (n == 1 || (n == -1 && errno == EFAULT));
        // 0: rcsock has met the fault, and does not find it again.
        n = ::epoll_wait(set, told, 4, 0);
        right = right && (n == 1 || n == 0 || (n == -1 && errno == EFAULT));
        timeval now{0, 0};
        fd_set asked;
        FD_ZERO(&asked);
        FD_SET(fd, &asked);
        // The set goes there by the kernel, which faults like it.
        int pipes[2];
        CHECK_THAT(::pipe(pipes) == 0);
        CHECK_THAT(::write(pipes[1], &asked, sizeof asked) == sizeof asked);
        if (::read(pipes[0], in, sizeof asked) == sizeof asked) {
          n = ::select(fd + 1, in, nullptr, nullptr, &now);
          right = right && (n == 1 || (n == -1 && errno == EFAULT));
        }
        ::close(pipes[0]);
        ::close(pipes[1]);
      }
      changes.join();
      for (const int number : {beside[0], beside[1], set}) ::close(number);
      Log("%d", right);
      char byte;
      RecvAll(fd, &byte, 1);
      Barrier();
    });

// A program's own handler does not hear of it, even one that would unprotect.
Case own_handler(
    "own_handler",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[10];
      RecvAll(fd, text, 4);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      const Edge edge(PROT_READ);
      const Edge none(PROT_NONE);
      static int calls;
      static char* page;
      page = edge.end;
      struct sigaction action {};
      action.sa_sigaction = [](int, siginfo_t* info, void*) {
        ++calls;
        if (info->si_addr == page) ::mprotect(page, kPage, PROT_WRITE);
      };
      action.sa_flags = SA_SIGINFO;
      CHECK_THAT(::sigaction(SIGSEGV, &action, nullptr) == 0);
      Result("recv", ::recv(fd, edge.end, 10, 0));
      Result("send", ::send(fd, none.end, 10, 0));
      Log("%d calls", calls);
      *static_cast<volatile char*>(page) = 1;
      Log("%d calls", calls);
      Result("recv", ::recv(fd, edge.end, 10, 0));
      Log("%.10s", edge.end);
      Result("send", ::send(fd, edge.end, 4, 0));
      ::signal(SIGSEGV, SIG_DFL);
      Result("send", ::send(fd, none.end, 10, 0));
      Barrier();
    });

}  // namespace
