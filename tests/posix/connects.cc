// How a connection is made, or is not: connect() that is refused, that waits in
// vain, is interrupted or asked again, and accept() of who has gone already.
// The connections that come of it go on, on the same descriptor, on a lane.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <thread>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

constexpr Options kAlone{.warm = false, .connect = false};

int Socket(int flags = 0) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | flags, 0);
  CHECK_THAT(fd >= 0);
  return fd;
}

int ConnectTo(int fd, int port) {
  const sockaddr_in to = posix_test::Loopback(port);
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

void LogConnect(int fd, int port) { Result("connect", ConnectTo(fd, port)); }

void LogError(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  CHECK_THAT(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
  Log("SO_ERROR %s", error == 0 ? "none" : ErrorName(error));
}

int State(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  CHECK_THAT(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
  return info.tcpi_state;
}

void AwaitState(int fd, int wanted) {
  while (State(fd) != wanted) ::poll(nullptr, 0, 1);
}

// What a connection does that is made at last.
void Serve(int fd) {
  WarmAs(fd, false);
  Echo(fd, 100);
  LogDrain(fd);
  ::close(fd);
}

void Use(int fd) {
  WarmAs(fd, true);
  Call(fd, 100);
  ::close(fd);
}

// A port that is somebody's, who does not listen there.
int BindAndTell() {
  const int fd = Socket();
  sockaddr_in at = posix_test::Loopback(0);
  socklen_t length = sizeof at;
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  CHECK_THAT(::bind(fd, address, length) == 0);
  CHECK_THAT(::getsockname(fd, address, &length) == 0);
  Tell(ntohs(at.sin_port));
  return fd;
}

// Where all connections are refused at first, and one is served then.
void Refuse(int) {
  const int listener = BindAndTell();
  Barrier();
  CHECK_THAT(::listen(listener, 8) == 0);
  Barrier();
  Serve(Accept(listener));
}

Case refused(
    "connect_refused", Refuse,
    [](int) {
      const int port = HearPort();
      const int fd = Socket();
      for (int i = 0; i < 2; ++i) {
        LogConnect(fd, port);
        LogError(fd);
        char byte;
        Result("recv", ::recv(fd, &byte, 1, 0));
        Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      }
      Barrier();
      Barrier();
      LogConnect(fd, port);
      Use(fd);
    },
    kAlone);

Case refused_later(
    "connect_refused_nonblocking", Refuse,
    [](int) {
      const int port = HearPort();
      // Who is told: SO_ERROR, the next connect, a read, a write.
      for (int i = 0; i < 4; ++i) {
        const int fd = Socket(SOCK_NONBLOCK);
        LogConnect(fd, port);
        AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLERR | POLLHUP);
        char byte = 'x';
        if (i == 0) LogError(fd);
        if (i == 1) LogConnect(fd, port);
        if (i == 2) Result("recv", ::recv(fd, &byte, 1, 0));
        if (i == 3) Result("send", ::send(fd, &byte, 1, MSG_NOSIGNAL));
        LogError(fd);
        AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
        Result("recv", ::recv(fd, &byte, 1, 0));
        Result("send", ::send(fd, &byte, 1, MSG_NOSIGNAL));
        // (Of one whose error has been taken already.)
        LogConnect(fd, port);
        ::close(fd);
      }
      const int fd = Socket(SOCK_NONBLOCK);
      LogConnect(fd, port);
      AwaitPoll(fd, POLLOUT, POLLHUP);
      LogConnect(fd, port);
      Barrier();
      Barrier();
      LogConnect(fd, port);
      AwaitPoll(fd, POLLOUT, POLLOUT);
      LogError(fd);
      Use(fd);
    },
    kAlone);

Case edges(
    "connect_by_edges", Refuse,
    [](int) {
      const int port = HearPort();
      const int fd = Socket(SOCK_NONBLOCK);
      const int set = NewSet();
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET) == 0);
      LogWait("of no connection", set, kLong);
      LogWait("and then", set, kQuiet);
      LogConnect(fd, port);
      AwaitPoll(fd, POLLOUT, POLLERR | POLLHUP);
      LogWait("refused", set, kLong);
      LogWait("and then", set, kQuiet);
      LogConnect(fd, port);
      Barrier();
      Barrier();
      LogConnect(fd, port);
      // (The refusal's edge is over.)
      LogWait("made", set, kLong);
      LogConnect(fd, port);
      LogConnect(fd, port);
      Use(fd);
    },
    kAlone);

// A queue of one, which is taken: who comes now hears nothing until somebody
// accepts.
struct FullQueue {
  FullQueue() : listener(Socket()) {
    sockaddr_in at = posix_test::Loopback(0);
    socklen_t length = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    CHECK_THAT(::bind(listener, address, length) == 0);
    CHECK_THAT(::listen(listener, 0) == 0);
    CHECK_THAT(::getsockname(listener, address, &length) == 0);
    const int port = ntohs(at.sin_port);
    first = Connect(port);
    // (It is in the queue once its last packet is there.)
    pollfd one{listener, POLLIN, 0};
    CHECK_THAT(::poll(&one, 1, kLong) == 1);
    Tell(port);
  }
  void Clear() {
    ::close(Accept(listener));
    ::close(first);
  }
  const int listener;
  int first;
};

void ServeLater(int) {
  FullQueue queue;
  Barrier();
  queue.Clear();
  Barrier();
  Serve(Accept(queue.listener));
}

Case in_vain(
    "connect_timed_out", ServeLater,
    [](int) {
      const int port = HearPort();
      const int once = 1;
      int fds[2];
      for (int& fd : fds) {
        fd = Socket();
        CHECK_THAT(
            ::setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &once, sizeof once) == 0);
      }
      SetNonblock(fds[0], true);
      LogConnect(fds[0], port);
      LogConnect(fds[1], port);
      LogError(fds[1]);
      AwaitPoll(fds[0], POLLIN | POLLOUT, POLLERR | POLLHUP);
      LogError(fds[0]);
      LogError(fds[0]);
      LogConnect(fds[0], port);
      Barrier();
      Barrier();
      ::close(fds[0]);
      LogConnect(fds[1], port);
      Use(fds[1]);
    },
    kAlone);

Case limited(
    "connect_in_a_limited_time", ServeLater,
    [](int) {
      const int port = HearPort();
      const int fd = Socket();
      const timeval brief{0, 20'000};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief) == 0);
      LogConnect(fd, port);
      LogConnect(fd, port);
      pollfd one{fd, POLLIN | POLLOUT, 0};
      Result("poll", ::poll(&one, 1, 0));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, MSG_DONTWAIT));
      Result("send", ::send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
      SetNonblock(fd, true);
      LogConnect(fd, port);
      Barrier();
      Barrier();
      AwaitPoll(fd, POLLOUT, POLLOUT);
      LogConnect(fd, port);
      LogConnect(fd, port);
      LogError(fd);
      SetNonblock(fd, false);
      Use(fd);
    },
    kAlone);

// --- Interrupted

volatile sig_atomic_t ticks;

// Until it is stopped, whenever a call begins.
void Tick(bool on, int flags = 0) {
  struct sigaction action {};
  action.sa_handler = [](int) { ticks = ticks + 1; };
  action.sa_flags = flags;
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, on ? 5000 : 0}, {0, on ? 5000 : 0}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
}

void Interrupt(int fd, int port) {
  Tick(true);
  LogConnect(fd, port);
  Tick(false);
}

// It goes on without the caller, who looks for its end by poll, as POSIX says.
Case interrupted(
    "connect_interrupted", ServeLater,
    [](int) {
      const int port = HearPort();
      const int fd = Socket();
      Interrupt(fd, port);
      pollfd one{fd, POLLOUT, 0};
      Result("poll", ::poll(&one, 1, 0));
      Barrier();
      Barrier();
      AwaitPoll(fd, POLLOUT, POLLOUT);
      LogError(fd);
      Use(fd);
    },
    kAlone);

Case interrupted_twice(
    "connect_interrupted_and_asked_again", ServeLater,
    [](int) {
      const int port = HearPort();
      const int fd = Socket();
      Interrupt(fd, port);
      SetNonblock(fd, true);
      LogConnect(fd, port);
      SetNonblock(fd, false);
      Interrupt(fd, port);
      Barrier();
      Barrier();
      LogConnect(fd, port);
      LogConnect(fd, port);
      Use(fd);
    },
    kAlone);

Case restarted(
    "connect_restarted", ServeLater,
    [](int) {
      const int port = HearPort();
      const int fd = Socket();
      const pid_t self = ::gettid();
      sigset_t alarm;
      ::sigemptyset(&alarm);
      ::sigaddset(&alarm, SIGALRM);
      ::pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
      std::thread other([fd, self] {
        AwaitState(fd, TCP_SYN_SENT);
        AwaitAsleep(::getpid(), self);
        const int so_far = ticks;
        while (ticks < so_far + 3) ::poll(nullptr, 0, 1);
        Barrier();
        Barrier();
      });
      ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
      Tick(true, SA_RESTART);
      LogConnect(fd, port);
      Tick(false);
      other.join();
      Use(fd);
    },
    kAlone);

// --- Accept

const linger kReset{1, 0};

// `gone`: what the client does before it is accepted.
struct Gone {
  Gone(const char* name, int state, std::size_t bytes, bool reset)
      : one(
            name,
            [state, bytes](int) {
              const int listener = ListenAndTell();
              Barrier();
              sockaddr_in from{};
              socklen_t length = sizeof from;
              auto* const address = reinterpret_cast<sockaddr*>(&from);
              const int fd = ::accept(listener, address, &length);
              CHECK_THAT(fd >= 0);
              Log("%u, family %d", length, from.sin_family);
              AwaitState(fd, state);
              length = sizeof from;
              Result("getpeername", ::getpeername(fd, address, &length));
              int there = -1;
              ::ioctl(fd, FIONREAD, &there);
              Log("FIONREAD %d", there);
              pollfd look{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
              Result("poll", ::poll(&look, 1, kLong));
              Log("%x", static_cast<unsigned>(look.revents));
              if (state == TCP_CLOSE_WAIT && bytes > 0) {
                std::string text(bytes, 0);
                RecvAll(fd, text.data(), text.size());
                CHECK_THAT(IsPattern(7, 0, text.data(), text.size()));
              }
              LogDrain(fd);
              Result("shutdown", ::shutdown(fd, SHUT_RDWR));
              LogError(fd);
              ::close(fd);
              // The next one is as any.
              Barrier();
              Serve(Accept(listener));
            },
            [bytes, reset](int) {
              const int port = HearPort();
              const int fd = Connect(port);
              std::string text(bytes, 0);
              Pattern(7, 0, text.data(), text.size());
              // (In so many calls that it may look for the other end.)
              for (std::size_t at = 0; at < bytes; at += 100) {
                SendAll(fd, text.data() + at, std::min(bytes - at, 100ul));
              }
              if (reset) {
                // (It takes along what is not there yet.)
                int unsent = 1;
                while (::ioctl(fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) {
                  ::poll(nullptr, 0, 1);
                }
                ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &kReset, sizeof kReset);
              }
              Result("close", ::close(fd));
              Barrier();
              Barrier();
              Use(Connect(port));
            },
            kAlone) {}
  const Case one;
};

Gone closed("accept_the_closed", TCP_CLOSE_WAIT, 0, false);
Gone closed_with("accept_the_closed_with_data", TCP_CLOSE_WAIT, 5000, false);
Gone was_reset("accept_the_reset", TCP_CLOSE, 0, true);
Gone reset_with("accept_the_reset_with_data", TCP_CLOSE, 5000, true);

// Long in the queue, and busy there.
Case late(
    "accept_late",
    [](int) {
      const int listener = ListenAndTell();
      Barrier();
      const int fd = Accept(listener);
      Echo(fd, 300);
      Serve(fd);
    },
    [](int) {
      const int fd = Connect(HearPort());
      char text[16];
      for (int i = 0; i < 300; ++i) {
        Pattern(9, static_cast<std::uint64_t>(i) * 16, text, sizeof text);
        SendAll(fd, text, sizeof text);
      }
      Barrier();
      for (int i = 0; i < 300; ++i) {
        RecvAll(fd, text, sizeof text);
        CHECK_THAT(IsPattern(9, static_cast<std::uint64_t>(i) * 16, text, 16));
      }
      Use(fd);
    },
    kAlone);

Case accept_flags(
    "accept4_flags",
    [](int) {
      const int listener = ListenAndTell();
      for (const int flags : std::initializer_list<int>{
               0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC}) {
        Result("wrong flag", ::accept4(listener, nullptr, nullptr, 1 << 5));
        sockaddr_in from{};
        auto* const address = reinterpret_cast<sockaddr*>(&from);
        // (Less room than it takes.)
        socklen_t length = 2;
        const int fd = ::accept4(listener, address, &length, flags);
        CHECK_THAT(fd >= 0);
        Log("length %u, family %d, port %d", length, from.sin_family,
            from.sin_port);
        const auto log = [fd] {
          Log("%o, %d", static_cast<unsigned>(::fcntl(fd, F_GETFL)),
              ::fcntl(fd, F_GETFD));
        };
        log();
        char byte;
        const bool nonblock = (flags & SOCK_NONBLOCK) != 0;
        Result("recv", ::recv(fd, &byte, 1, nonblock ? 0 : MSG_DONTWAIT));
        Barrier();
        WarmAs(fd, false);
        Result("recv", ::recv(fd, &byte, 1, nonblock ? 0 : MSG_DONTWAIT));
        log();
        Barrier();
        Echo(fd, 50);
        SetNonblock(fd, false);
        LogDrain(fd);
        ::close(fd);
      }
    },
    [](int) {
      const int port = HearPort();
      for (int i = 0; i < 4; ++i) {
        const int fd = Connect(port);
        Barrier();
        WarmAs(fd, true);
        Barrier();
        Call(fd, 50);
        ::close(fd);
      }
    },
    kAlone);

// Nobody there: at once, in a time, when a signal comes, when it is shut down.
Case nobody(
    "accept_of_nobody",
    [](int) {
      const int listener = ListenAndTell();
      SetNonblock(listener, true);
      Result("accept", ::accept(listener, nullptr, nullptr));
      SetNonblock(listener, false);
      const timeval brief{0, 20'000};
      ::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
      Result("accept", ::accept(listener, nullptr, nullptr));
      const timeval forever{0, 0};
      ::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
      Tick(true);
      Result("accept", ::accept(listener, nullptr, nullptr));
      Tick(false);

      // Told of it by edges.
      SetNonblock(listener, true);
      const int set = NewSet();
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET) == 0);
      LogWait("quiet", set, kQuiet);
      for (int i = 0; i < 2; ++i) {
        Barrier();
        LogWait("one", set, kLong);
        LogWait("and then", set, kQuiet);
        const int fd = Accept(listener);
        Result("accept", ::accept(listener, nullptr, nullptr));
        Serve(fd);
      }
      SetNonblock(listener, false);

      const pid_t self = ::gettid();
      std::thread other([listener, self] {
        AwaitAsleep(::getpid(), self);
        CHECK_THAT(::shutdown(listener, SHUT_RD) == 0);
      });
      Result("accept", ::accept(listener, nullptr, nullptr));
      other.join();
      Result("accept", ::accept(listener, nullptr, nullptr));
    },
    [](int) {
      const int port = HearPort();
      for (int i = 0; i < 2; ++i) {
        Barrier();
        Use(Connect(port));
      }
    },
    kAlone);

}  // namespace
