// Makes docs/options.md: what each option, flag and call does to a stream that
// is on a lane.  Run under the preload, with RCSOCK_PROMOTE_OPS=1.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/nbd.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/posix/common.h"

extern char** environ;

namespace {

// Both ends of a connection of this process.
struct Pair {
  int a = -1;
  int b = -1;
};

[[noreturn]] void Die(const char* what) {
  ::fprintf(stderr, "options: %s: %s\n", what, ::strerror(errno));
  ::exit(1);
}

Pair Connect() {
  Pair pair;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = posix_test::Loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
          0) {
    Die("listen");
  }
  pair.a = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(pair.a, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    Die("connect");
  }
  pair.b = ::accept(listener, nullptr, nullptr);
  if (pair.b < 0) Die("accept");
  ::close(listener);
  const int on = 1;
  ::setsockopt(pair.a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(pair.b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return pair;
}

std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    Die("TCP_INFO");
  }
  return info.tcpi_bytes_received + info.tcpi_bytes_acked;
}

constexpr std::size_t kMessage = 64;

void Move(int from, int to) {
  char bytes[kMessage] = {};
  if (::send(from, bytes, kMessage, MSG_NOSIGNAL) != kMessage) Die("send");
  for (std::size_t got = 0; got < kMessage;) {
    pollfd one{to, POLLIN, 0};
    if (::poll(&one, 1, 10'000) != 1) Die("poll");
    const ssize_t n = ::recv(to, bytes, kMessage - got, MSG_DONTWAIT);
    if (n <= 0 && errno != EAGAIN) Die("recv");
    if (n > 0) got += static_cast<std::size_t>(n);
  }
}

// Round trips, and whether TCP carried them (it carries a few frames always).
bool OverTcp(const Pair& pair) {
  constexpr int kTrips = 20;
  const std::uint64_t before = TcpBytes(pair.a);
  for (int i = 0; i < kTrips; ++i) {
    Move(pair.a, pair.b);
    Move(pair.b, pair.a);
  }
  return TcpBytes(pair.a) - before > kTrips * kMessage;
}

void Warm(const Pair& pair) {
  const std::uint64_t end = posix_test::NowMs() + 10'000;
  while (OverTcp(pair)) {
    if (posix_test::NowMs() > end) Die("no lane");
  }
}

void Put(int fd, const char* text) {
  if (::send(fd, text, ::strlen(text), MSG_NOSIGNAL) < 0) Die("send");
}

void Take(int fd, std::size_t length) {
  char text[256];
  for (std::size_t got = 0; got < length;) {
    const ssize_t n = ::recv(fd, text, length - got, 0);
    if (n <= 0) Die("recv");
    got += static_cast<std::size_t>(n);
  }
}

// What an action said: 0, or errno where Linux has no such thing here.
using Action = std::function<int(const Pair&)>;
int Said(long result) { return result < 0 ? errno : 0; }

Action Set(int level, int name, int value) {
  return [=](const Pair& pair) {
    return Said(::setsockopt(pair.a, level, name, &value, sizeof value));
  };
}

Action SetTime(int name) {
  return [=](const Pair& pair) {
    const timeval time{1, 0};
    return Said(::setsockopt(pair.a, SOL_SOCKET, name, &time, sizeof time));
  };
}

Action Get(int level, int name) {
  return [=](const Pair& pair) {
    int value[64] = {};
    socklen_t length = sizeof value;
    return Said(::getsockopt(pair.a, level, name, value, &length));
  };
}

Action Send(int flags) {
  return [=](const Pair& pair) {
    const int said = Said(::send(pair.a, "x", 1, flags));
    if ((flags & MSG_OOB) == 0) {
      Put(pair.a, "y");  // MSG_MORE holds the other back
      Take(pair.b, 2);
    }
    return said;
  };
}

Action Receive(int flags) {
  return [=](const Pair& pair) {
    Put(pair.b, "x");
    pollfd one{pair.a, POLLIN, 0};
    ::poll(&one, 1, -1);
    char byte;
    const long n = ::recv(pair.a, &byte, 1, flags);
    const int said = Said(n);
    if (n < 0 || (flags & MSG_PEEK) != 0) Take(pair.a, 1);
    // These say that there is nothing of the kind.
    return said == EINVAL || said == EAGAIN ? 0 : said;
  };
}

Action Control(unsigned long request, int value) {
  return [=](const Pair& pair) {
    int argument = value;
    return Said(::ioctl(pair.a, request, &argument));
  };
}

Action Command(int command, long value) {
  return
      [=](const Pair& pair) { return Said(::fcntl(pair.a, command, value)); };
}

void Reap(pid_t child) {
  int status;
  if (child < 0 || ::waitpid(child, &status, 0) != child) Die("child");
}

int PassToSelf(const Pair& pair) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) Die("socketpair");
  char byte = 0;
  iovec iov{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  ::memcpy(CMSG_DATA(header), &pair.a, sizeof(int));
  const int said = Said(::sendmsg(ends[0], &message, 0));
  ::close(ends[0]);
  ::close(ends[1]);
  return said;
}

int SpliceOne(int from, int to) {
  return Said(::splice(from, nullptr, to, nullptr, 1, 0));
}

int InSet(const Pair& pair) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  const int said = Said(::epoll_ctl(set, EPOLL_CTL_ADD, pair.a, &event));
  epoll_event found[2];
  ::epoll_wait(set, found, 2, 0);
  ::close(set);
  return said;
}

// The sets stay: they are what the streams leave for.
int InNestedSet(const Pair& pair) {
  const int inner = ::epoll_create1(EPOLL_CLOEXEC);
  const int outer = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(inner, EPOLL_CTL_ADD, pair.a, &event);
  return Said(::epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
}

struct Row {
  const char* group;
  const char* name;
  Action action;
};

const std::vector<Row>& Rows() {
  static const auto& rows = *new std::vector<Row>{
#define SOCKET(name, value) {"SOL_SOCKET", #name, Set(SOL_SOCKET, name, value)}
#define TCP(name, value) \
  { "IPPROTO_TCP", #name, Set(IPPROTO_TCP, name, value) }
      {"SOL_SOCKET", "SO_RCVTIMEO", SetTime(SO_RCVTIMEO)},
      {"SOL_SOCKET", "SO_SNDTIMEO", SetTime(SO_SNDTIMEO)},
      SOCKET(SO_RCVBUF, 100'000),
      SOCKET(SO_SNDBUF, 100'000),
      {"SOL_SOCKET", "SO_RCVLOWAT 1", Set(SOL_SOCKET, SO_RCVLOWAT, 1)},
      {"SOL_SOCKET", "SO_RCVLOWAT 2", Set(SOL_SOCKET, SO_RCVLOWAT, 2)},
      {"SOL_SOCKET", "SO_ATTACH_FILTER",
       [](const Pair& pair) {
         sock_filter all[] = {{BPF_RET | BPF_K, 0, 0, ~0u}};
         const sock_fprog program{1, all};
         return Said(::setsockopt(pair.a, SOL_SOCKET, SO_ATTACH_FILTER,
                                  &program, sizeof program));
       }},
      {"SOL_SOCKET", "SO_LINGER",
       [](const Pair& pair) {
         const linger option{1, 1};
         return Said(::setsockopt(pair.a, SOL_SOCKET, SO_LINGER, &option,
                                  sizeof option));
       }},
      SOCKET(SO_KEEPALIVE, 1),
      SOCKET(SO_REUSEADDR, 1),
      SOCKET(SO_REUSEPORT, 1),
      SOCKET(SO_DONTROUTE, 1),
      SOCKET(SO_PRIORITY, 1),
      SOCKET(SO_MAX_PACING_RATE, 1 << 30),
      SOCKET(SO_OOBINLINE, 1),
      SOCKET(SO_ZEROCOPY, 1),
      SOCKET(SO_TIMESTAMP, 1),
      SOCKET(SO_TIMESTAMPNS, 1),
      SOCKET(SO_TIMESTAMPING, 1 << 3),
      {"SOL_SOCKET", "SO_ERROR", Get(SOL_SOCKET, SO_ERROR)},
      {"SOL_SOCKET", "SO_TYPE", Get(SOL_SOCKET, SO_TYPE)},
      TCP(TCP_NODELAY, 0),
      TCP(TCP_CORK, 1),
      TCP(TCP_QUICKACK, 1),
      TCP(TCP_KEEPIDLE, 100),
      TCP(TCP_KEEPINTVL, 100),
      TCP(TCP_KEEPCNT, 5),
      TCP(TCP_SYNCNT, 5),
      TCP(TCP_LINGER2, 5),
      TCP(TCP_DEFER_ACCEPT, 1),
      TCP(TCP_WINDOW_CLAMP, 100'000),
      TCP(TCP_USER_TIMEOUT, 10'000),
      TCP(TCP_NOTSENT_LOWAT, 100'000),
      TCP(TCP_INQ, 1),
      {"IPPROTO_TCP", "TCP_INFO", Get(IPPROTO_TCP, TCP_INFO)},
      {"IPPROTO_TCP", "TCP_MAXSEG", Get(IPPROTO_TCP, TCP_MAXSEG)},
      {"IPPROTO_TCP", "TCP_CONGESTION", Get(IPPROTO_TCP, TCP_CONGESTION)},
      {"IPPROTO_TCP", "TCP_ZEROCOPY_RECEIVE",
       [](const Pair& pair) {
         tcp_zerocopy_receive what{};
         socklen_t length = sizeof what;
         ::getsockopt(pair.a, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &what,
                      &length);
         return 0;  // (without a mapping it fails)
       }},
      {"IPPROTO_IP", "IP_TOS", Set(IPPROTO_IP, IP_TOS, 8)},
      {"IPPROTO_IP", "IP_TTL", Set(IPPROTO_IP, IP_TTL, 60)},
#undef TCP
#undef SOCKET
      {"send", "MSG_DONTWAIT", Send(MSG_DONTWAIT)},
      {"send", "MSG_NOSIGNAL", Send(MSG_NOSIGNAL)},
      {"send", "MSG_MORE", Send(MSG_MORE)},
      {"send", "MSG_EOR", Send(MSG_EOR)},
      {"send", "MSG_DONTROUTE", Send(MSG_DONTROUTE)},
      {"send", "MSG_OOB", Send(MSG_OOB)},
      {"recv", "MSG_DONTWAIT", Receive(MSG_DONTWAIT)},
      {"recv", "MSG_PEEK", Receive(MSG_PEEK)},
      {"recv", "MSG_WAITALL", Receive(MSG_WAITALL)},
      {"recv", "MSG_TRUNC", Receive(MSG_TRUNC)},
      {"recv", "MSG_OOB", Receive(MSG_OOB)},
      {"recv", "MSG_ERRQUEUE", Receive(MSG_ERRQUEUE)},
      {"ioctl", "FIONREAD", Control(FIONREAD, 0)},
      {"ioctl", "FIONBIO", Control(FIONBIO, 0)},
      {"ioctl", "FIOASYNC", Control(FIOASYNC, 1)},
      {"ioctl", "SIOCOUTQ", Control(SIOCOUTQ, 0)},
      {"ioctl", "SIOCOUTQNSD", Control(SIOCOUTQNSD, 0)},
      {"ioctl", "SIOCATMARK", Control(SIOCATMARK, 0)},
      {"ioctl", "SIOCSPGRP", Control(SIOCSPGRP, 0)},
      {"ioctl", "NBD_SET_SOCK",
       [](const Pair& pair) {
         const int device = ::open("/dev/null", O_RDWR | O_CLOEXEC);
         ::ioctl(device, NBD_SET_SOCK, pair.a);  // (which is none)
         ::close(device);
         return 0;
       }},
      {"fcntl", "F_GETFL", Command(F_GETFL, 0)},
      {"fcntl", "F_SETFD", Command(F_SETFD, 0)},
      {"fcntl", "F_SETFL 0", Command(F_SETFL, 0)},
      {"fcntl", "F_SETFL O_ASYNC", Command(F_SETFL, O_ASYNC)},
      {"fcntl", "F_SETOWN", Command(F_SETOWN, 0)},
      {"fcntl", "F_SETSIG", Command(F_SETSIG, 0)},
      {"fcntl", "F_DUPFD", Command(F_DUPFD, 0)},
      {"calls", "dup", [](const Pair& pair) { return Said(::dup(pair.a)); }},
      {"calls", "writev, readv",
       [](const Pair& pair) {
         char bytes[2] = {};
         iovec two[2] = {{bytes, 1}, {bytes + 1, 1}};
         const int said = Said(::writev(pair.a, two, 2));
         return said != 0 ? said : Said(::readv(pair.b, two, 2));
       }},
      {"calls", "sendfile",
       [](const Pair& pair) {
         const int file = ::memfd_create("file", MFD_CLOEXEC);
         if (::write(file, "12345678", 8) != 8) Die("memfd");
         off_t offset = 0;
         const int said = Said(::sendfile(pair.a, file, &offset, 8));
         Take(pair.b, 8);
         ::close(file);
         return said;
       }},
      {"calls", "sendfile from the stream to a pipe",
       [](const Pair& pair) {
         int ends[2];
         if (::pipe(ends) != 0) Die("pipe");
         Put(pair.b, "x");
         return Said(::sendfile(ends[1], pair.a, nullptr, 1));
       }},
      {"calls", "splice from the stream",
       [](const Pair& pair) {
         int ends[2];
         if (::pipe(ends) != 0) Die("pipe");
         Put(pair.b, "x");
         return SpliceOne(pair.a, ends[1]);
       }},
      {"calls", "splice to the stream",
       [](const Pair& pair) {
         int ends[2];
         if (::pipe(ends) != 0 || ::write(ends[1], "x", 1) != 1) Die("pipe");
         const int said = SpliceOne(ends[0], pair.a);
         Take(pair.b, 1);
         return said;
       }},
      {"calls", "dprintf",
       [](const Pair& pair) {
         const int said = Said(::dprintf(pair.a, "x"));
         Take(pair.b, 1);
         return said;
       }},
      {"calls", "fdopen",
       [](const Pair& pair) {
         return ::fdopen(pair.a, "r") != nullptr ? 0 : errno;
       }},
      {"calls", "sendmsg, SCM_RIGHTS over AF_UNIX", PassToSelf},
      {"calls", "pidfd_getfd by the process itself",
       [](const Pair& pair) {
         const long self = ::syscall(SYS_pidfd_open, ::getpid(), 0);
         return Said(::syscall(SYS_pidfd_getfd, self, pair.a, 0));
       }},
      {"calls", "poll, select",
       [](const Pair& pair) {
         fd_set in;
         FD_ZERO(&in);
         FD_SET(pair.a, &in);
         timeval none{0, 0};
         return Said(::select(pair.a + 1, &in, nullptr, nullptr, &none));
       }},
      {"calls", "epoll", InSet},
      {"calls", "epoll, the set in another set", InNestedSet},
      {"calls", "fork, once the child has ended",
       [](const Pair& pair) {
         const pid_t child = ::fork();
         if (child == 0) ::_exit(0);
         Reap(child);
         Warm(pair);  // or it ends the program
         return 0;
       }},
      {"calls", "vfork",
       [](const Pair&) {
         const pid_t child = ::vfork();
         if (child == 0) ::_exit(0);
         Reap(child);
         return 0;
       }},
      {"calls", "system, the stream close-on-exec",
       [](const Pair& pair) {
         ::fcntl(pair.a, F_SETFD, FD_CLOEXEC);
         ::fcntl(pair.b, F_SETFD, FD_CLOEXEC);
         return Said(::system("true"));
       }},
      {"calls", "system, the stream inherited, once it has ended",
       [](const Pair& pair) {
         const int status = ::system("true");
         Warm(pair);
         return Said(status);
       }},
      {"calls", "posix_spawn, the stream inherited, once it has ended",
       [](const Pair& pair) {
         char name[] = "true";
         char* const argv[] = {name, nullptr};
         pid_t child = -1;
         errno = ::posix_spawnp(&child, name, nullptr, nullptr, argv, environ);
         Reap(child);
         Warm(pair);
         return 0;
       }},
  };
  return rows;
}

const char* Becomes(const Pair& pair) {
  if (!OverTcp(pair)) return "stays on the lane";
  // Each look that fails makes the next one come later.
  const std::uint64_t end = posix_test::NowMs() + 400;
  while (posix_test::NowMs() < end) {
    if (!OverTcp(pair)) return "goes to TCP, comes back";
  }
  return "goes to TCP, for good";
}

}  // namespace

int main() {
  ::printf(
      "# Options, flags and calls on a lane\n\n"
      "Made by `tests/posix/options`, which does each of these to a stream on "
      "shared memory; a\ntest keeps it current. What each call does otherwise: "
      "[interposed.md](interposed.md).\n");
  std::string group;
  for (const Row& row : Rows()) {
    if (group != row.group) {
      group = row.group;
      ::printf("\n## %s\n\n| | the stream |\n| --- | --- |\n", row.group);
    }
    const Pair pair = Connect();
    Warm(pair);
    errno = 0;
    const int said = row.action(pair);
    if (said != 0) {
      ::printf("| `%s` | not on this kernel: %s |\n", row.name,
               ::strerrorname_np(said));
    } else {
      ::printf("| `%s` | %s |\n", row.name, Becomes(pair));
    }
    ::fflush(stdout);
    ::close(pair.a);
    ::close(pair.b);
  }
  return 0;
}
