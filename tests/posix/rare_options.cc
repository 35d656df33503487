// Options that few programs set, and what is told beside the bytes.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

Case low_water(
    "rcvlowat",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
    },
    [](int fd) {
      int mark = 5;
      Result("SO_RCVLOWAT",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
      Barrier();
      Barrier();
      AwaitBytes(fd, 3);
      pollfd one{fd, POLLIN, 0};
      Result("poll below the mark", ::poll(&one, 1, 20));
      char text[16] = {};
      Result("recv, not waiting",
             ::recv(fd, text, 16, MSG_DONTWAIT | MSG_PEEK));
      Barrier();
      Result("poll", ::poll(&one, 1, -1));
      Result("recv", ::recv(fd, text, 16, 0));
      Log("%s", text);
      Barrier();
    });

// recvmsg, and what comes beside the bytes.
long RecvTold(int fd, void* to, std::size_t length, int flags,
              std::size_t room) {
  iovec iov{to, length};
  alignas(cmsghdr) char control[64] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = room != 0 ? control : nullptr;
  message.msg_controllen = room;
  const long n = ::recvmsg(fd, &message, flags);
  if (n < 0) return Result("recvmsg", n);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  const bool none = message.msg_controllen < sizeof *header;
  int value = -1;
  if (!none && header->cmsg_type == TCP_INQ &&
      header->cmsg_len >= CMSG_LEN(sizeof value)) {
    std::memcpy(&value, CMSG_DATA(header), sizeof value);
  }
  Log("recvmsg %ld, control %zu, level %d, type %d, %d, flags %#x", n,
      static_cast<std::size_t>(message.msg_controllen),
      none ? 0 : header->cmsg_level, none ? 0 : header->cmsg_type, value,
      static_cast<unsigned>(message.msg_flags));
  return value;
}

Case bytes_left(
    "tcp_inq",
    [](int fd) {
      Barrier();
      const std::string text(10'000, 'x');
      SendAll(fd, text.data(), text.size());
      Barrier();
      SendAll(fd, "abcdefgh", 8);
      Barrier();
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      int on = 1;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      Barrier();
      AwaitBytes(fd, 10'000);
      char text[10'000];
      RecvTold(fd, text, 1000, 0, 64);
      RecvTold(fd, text, 1000, MSG_PEEK, 64);
      RecvTold(fd, text, 1000, MSG_DONTWAIT, 0);
      RecvTold(fd, text, 1000, 0, 8);
      RecvTold(fd, text, 1000, 0, 18);
      RecvTold(fd, text, 1000, 0, 20);
      Result("recv", ::recv(fd, text, 1000, 0));
      RecvTold(fd, text, 10'000, 0, 64);
      RecvTold(fd, text, 10, MSG_DONTWAIT, 64);
      on = 0;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      Barrier();
      AwaitBytes(fd, 8);
      RecvTold(fd, text, 4, 0, 64);
      on = 1;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      RecvTold(fd, text, 4, 0, 64);
      Barrier();
      // The end is something to come back for.
      pollfd one{fd, POLLRDHUP, 0};
      Result("poll", ::poll(&one, 1, -1));
      RecvTold(fd, text, 4, 0, 64);
      RecvTold(fd, text, 4, 0, 64);
      Barrier();
    });

// An accepted connection has what its listener had.
Case inherited_options(
    "tcp_inq_of_the_listener",
    [](int) {
      int port;
      const int listener = Listen(&port);
      const int on = 1;
      Result("TCP_INQ",
             ::setsockopt(listener, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      Tell(port);
      const int fd = Accept(listener);
      Warm(fd);
      Barrier();
      AwaitBytes(fd, 8);
      char text[8];
      RecvTold(fd, text, 3, 0, 64);
      RecvTold(fd, text, 3, MSG_CMSG_CLOEXEC, 64);
      RecvTold(fd, text, 2, MSG_CMSG_CLOEXEC, 0);
      Barrier();
    },
    [](int) {
      const int fd = Connect(HearPort());
      Warm(fd);
      Barrier();
      SendAll(fd, "abcdefgh", 8);
      Barrier();
    },
    {.warm = false, .connect = false});

// As gRPC: at an edge it reads until nothing is left, and not until EAGAIN.
Case left_and_edges(
    "tcp_inq_edges",
    [](int fd) {
      Barrier();
      std::vector<char> text(30'000);
      Random random(Seed());
      for (int i = 0; i < 3'000; ++i) {
        const std::size_t n = 1 + random.Below(i % 50 == 0 ? 30'000 : 300);
        SendAll(fd, text.data(), n);
        // So that it goes to sleep now and then.
        if (i % 10 == 0) RecvAll(fd, text.data(), 1);
      }
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      const int on = 1;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      SetNonblock(fd, true);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN | static_cast<std::uint32_t>(EPOLLET);
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      // What it has read when it owes a byte.
      std::vector<std::uint64_t> marks;
      Random random(Seed());
      std::uint64_t total = 0;
      for (int i = 0; i < 3'000; ++i) {
        total += 1 + random.Below(i % 50 == 0 ? 30'000 : 300);
        if (i % 10 == 0) marks.push_back(total);
      }
      Barrier();
      const std::uint64_t before = TcpBytes(fd);
      std::vector<char> text(7'000);
      std::uint64_t got = 0;
      std::size_t answered = 0;
      for (bool end = false; !end;) {
        if (::epoll_wait(set, &event, 1, 5'000) != 1) {
          Fail("no edge after %llu bytes of %llu",
               static_cast<unsigned long long>(got),
               static_cast<unsigned long long>(total));
        }
        for (int left = 1; left != 0;) {
          iovec iov{text.data(), text.size()};
          alignas(cmsghdr) char control[64];
          msghdr message{};
          message.msg_iov = &iov;
          message.msg_iovlen = 1;
          message.msg_control = control;
          message.msg_controllen = sizeof control;
          const ssize_t n = ::recvmsg(fd, &message, 0);
          if (n < 0 && errno == EAGAIN) break;
          CHECK_THAT(n >= 0);
          end = n == 0;
          if (end) break;
          got += static_cast<std::uint64_t>(n);
          const cmsghdr* header = CMSG_FIRSTHDR(&message);
          CHECK_THAT(header != nullptr && header->cmsg_type == TCP_INQ);
          std::memcpy(&left, CMSG_DATA(header), sizeof left);
          while (answered < marks.size() && got >= marks[answered]) {
            SendAll(fd, "x", 1);
            ++answered;
          }
        }
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("%llu bytes, all %d, on the lane %d",
          static_cast<unsigned long long>(got), got == total,
          warm == nullptr || TcpBytes(fd) - before < total / 2);
      Barrier();
    });

// iperf2 sets it on each of its connections, and never looks.
Case stamps(
    "timestamp",
    [](int fd) {
      Barrier();
      for (int i = 0; i < 20; ++i) Echo(fd, 1);
      Barrier();
      SendAll(fd, "abcdefgh", 8);
      Barrier();
    },
    [](int fd) {
      int on = 1;
      Result("SO_TIMESTAMP",
             ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
      AwaitStamps();
      Barrier();
      char text[16] = {};
      const std::uint64_t before = TcpBytes(fd);
      for (int i = 0; i < 20; ++i) {
        SendAll(fd, text, sizeof text);
        RecvAll(fd, text, sizeof text);
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("%d", warm == nullptr || TcpBytes(fd) - before < 20 * sizeof text);
      Barrier();
      AwaitBytes(fd, 8);
      RecvTold(fd, text, 4, 0, 64);
      RecvTold(fd, text, 4, 0, 0);
      Barrier();
    });

// A time-out of ages is none, one of less than nothing is no wait.
Case odd_timeouts(
    "odd_timeouts",
    [](int fd) {
      for (int i = 0; i < 2; ++i) {
        // (The other end may be waiting by then, and should be.)
        char byte;
        RecvAll(fd, &byte, 1);
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 20);
        SendAll(fd, "x", 1);
      }
      Barrier();
    },
    [](int fd) {
      for (const time_t seconds :
           {std::numeric_limits<time_t>::max(), time_t{18'446'744'073}}) {
        const timeval ages{seconds, 0};
        Result("set",
               ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &ages, sizeof ages));
        SendAll(fd, "x", 1);
        char byte;
        Result("read", ::read(fd, &byte, 1));
      }
      const timeval less{-1, 0};
      Result("set",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &less, sizeof less));
      char byte;
      Result("read", ::read(fd, &byte, 1));
      Barrier();
    });

Case async(
    "o_async",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int fd) {
      sigset_t mask;
      ::sigemptyset(&mask);
      ::sigaddset(&mask, SIGIO);
      ::sigprocmask(SIG_BLOCK, &mask, nullptr);
      Result("F_SETOWN", ::fcntl(fd, F_SETOWN, ::getpid()));
      const int flags = ::fcntl(fd, F_GETFL);
      Result("O_ASYNC", ::fcntl(fd, F_SETFL, flags | O_ASYNC));
      // (What made it pending so far.)
      const timespec none{0, 0};
      while (::sigtimedwait(&mask, nullptr, &none) > 0) {
      }
      Barrier();
      const timespec limit{5, 0};
      Log("SIGIO %d", ::sigtimedwait(&mask, nullptr, &limit) == SIGIO);
      char text[4];
      RecvAll(fd, text, 3);
      Barrier();
    });

Case info(
    "tcp_info",
    [](int fd) {
      Echo(fd, 10);
      Barrier();
    },
    [](int fd) {
      Call(fd, 10);
      tcp_info about{};
      socklen_t size = sizeof about;
      Result("TCP_INFO",
             ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &about, &size));
      Log("state %d, mss %d", about.tcpi_state, about.tcpi_snd_mss > 500);
      int mss = 0;
      size = sizeof mss;
      Result("TCP_MAXSEG",
             ::getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &size));
      Log("mss %d", mss > 500);
      Barrier();
    });

// What waits for more is not lost when there is none.
Case corked(
    "cork_and_more",
    [](int fd) {
      char text[64] = {};
      RecvAll(fd, text, 12);
      Log("%s", text);
      SendAll(fd, "!", 1);
      RecvAll(fd, text, 8);
      Log("%.8s", text);
    },
    [](int fd) {
      int on = 1;
      Result("cork", ::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
      SendAll(fd, "head ", 5);
      SendAll(fd, "body", 4);
      on = 0;
      ::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
      Result("more", ::send(fd, "a", 1, MSG_MORE));
      Result("more", ::send(fd, "b", 1, MSG_MORE));
      Result("last", ::send(fd, "c", 1, 0));
      char byte;
      RecvAll(fd, &byte, 1);
      Result("more", ::send(fd, "the last", 8, MSG_MORE));
      ::shutdown(fd, SHUT_WR);
    });

// The same descriptor as a program is started with: not made here, as far as
// anybody has seen.
int Unknown(int fd) {
  int ends[2];
  CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  char byte = 'x';
  iovec one{&byte, 1};
  msghdr message{};
  message.msg_iov = &one;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  CHECK_THAT(::sendmsg(ends[0], &message, 0) == 1);
  message.msg_controllen = sizeof control;
  CHECK_THAT(::recvmsg(ends[1], &message, 0) == 1);
  int copy = -1;
  std::memcpy(&copy, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof copy);
  for (const int end : ends) ::close(end);
  ::close(fd);
  return copy;
}

int AcceptUnknown(int option, int value) {
  int port;
  int listener = Listen(&port);
  CHECK_THAT(::setsockopt(listener, SOL_SOCKET, option, &value, sizeof value) ==
             0);
  listener = Unknown(listener);
  Tell(port);
  const int fd = Accept(listener);
  ::close(listener);
  return fd;
}

Case unknown_listener(
    "listener_from_elsewhere",
    [](int) {
      int fd = AcceptUnknown(SO_RCVLOWAT, 10);
      Echo(fd, 200);
      Barrier();
      pollfd one{fd, POLLIN, 0};
      Result("of 5 bytes, poll", ::poll(&one, 1, 100));
      Barrier();
      Result("of 10 bytes, poll", ::poll(&one, 1, 3000));
      ::close(fd);
      fd = AcceptUnknown(SO_OOBINLINE, 1);
      Echo(fd, 200);
      Barrier();
      AwaitBytes(fd, 4);
      char text[16];
      Result("before the mark", ::recv(fd, text, sizeof text, 0));
      Result("at it", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
      Log("%c", text[0]);
      ::close(fd);
    },
    [](int) {
      int fd = Connect(HearPort());
      Call(fd, 200);
      SendAll(fd, "01234", 5);
      Barrier();
      Barrier();
      SendAll(fd, "56789", 5);
      int error;
      Log("rest %zu", Drain(fd, &error));
      ::close(fd);
      fd = Connect(HearPort());
      Call(fd, 200);
      SendAll(fd, "abc", 3);
      Result("urgent", ::send(fd, "!", 1, MSG_OOB));
      Barrier();
      Log("rest %zu", Drain(fd, &error));
      ::close(fd);
    },
    {.warm = false, .connect = false});

// The connection is on a lane, and waits no longer than its listener said.
Case unknown_listener_waits(
    "listener_from_elsewhere_with_a_time_out",
    [](int) {
      int port;
      int listener = Listen(&port);
      const timeval time{0, 50'000};
      CHECK_THAT(::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time,
                              sizeof time) == 0);
      listener = Unknown(listener);
      Tell(port);
      const int fd = Accept(listener);
      Warm(fd);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Barrier();
    },
    [](int) {
      const int fd = Connect(HearPort());
      Warm(fd);
      Barrier();
    },
    {.warm = false, .connect = false});

// (By Linux 6.9 and later.  0 is on, -1 off.)
Case peek_off(
    "peek_offset",
    [](int fd) {
      SendAll(fd, "abcdef", 6);
      Barrier();
      Echo(fd, 10);
    },
    [](int fd) {
      int offset = 0;
      Result("SO_PEEK_OFF",
             ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
      AwaitBytes(fd, 6);
      char text[6];
      for (int i = 0; i < 3; ++i) {
        const ssize_t n = ::recv(fd, text, 2, MSG_PEEK | MSG_DONTWAIT);
        Log("peek: %.*s", static_cast<int>(n), text);
      }
      RecvAll(fd, text, 6);
      Log("%.6s", text);
      Barrier();
      Call(fd, 10);
    });

}  // namespace
