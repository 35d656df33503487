// MSG_ZEROCOPY, and what the error queue says of it.
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

Case zerocopy(
    "zerocopy",
    [](int fd) {
      std::vector<char> text(100'000);
      RecvAll(fd, text.data(), text.size());
      Log("right %d", IsPattern(12, 0, text.data(), text.size()));
      Barrier();
    },
    [](int fd) {
      const int on = 1;
      Result("SO_ZEROCOPY",
             ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
      std::vector<char> text(100'000);
      Pattern(12, 0, text.data(), text.size());
      std::size_t at = 0;
      std::uint32_t sends = 0;
      while (at < text.size()) {
        const ssize_t n =
            ::send(fd, text.data() + at, text.size() - at, MSG_ZEROCOPY);
        CHECK_THAT(n > 0);
        at += static_cast<std::size_t>(n);
        ++sends;
      }
      Barrier();
      std::uint32_t told = 0;
      while (told < sends) {
        pollfd one{fd, 0, 0};
        CHECK_THAT(::poll(&one, 1, 5000) == 1);
        CHECK_THAT((one.revents & POLLERR) != 0);
        char control[200];
        msghdr message{};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        CHECK_THAT(::recvmsg(fd, &message, MSG_ERRQUEUE) >= 0);
        const cmsghdr* header = CMSG_FIRSTHDR(&message);
        CHECK_THAT(header != nullptr && header->cmsg_level == SOL_IP &&
                   header->cmsg_type == IP_RECVERR);
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(header), sizeof error);
        CHECK_THAT(error.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
        told = error.ee_data + 1;
      }
      Log("all told %d", told == sends);
    });

void AllowZeroCopy(int fd) {
  const int on = 1;
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
}

constexpr std::size_t kZeroCopyPiece = 5000;

// The server's half: takes `pieces` of them, and says so.
void TakePieces(int fd, int pieces) {
  std::vector<char> text(kZeroCopyPiece);
  for (int i = 0; i < pieces; ++i) {
    RecvAll(fd, text.data(), text.size());
    CHECK_THAT(IsPattern(13, 0, text.data(), text.size()));
  }
  Barrier();
}

// One call, of which the kernel takes all.
void SendPiece(int fd, int flags) {
  // (Which the kernel may still read afterwards.)
  static std::vector<char> text(kZeroCopyPiece);
  Pattern(13, 0, text.data(), text.size());
  CHECK_THAT(::send(fd, text.data(), text.size(), flags) ==
             static_cast<ssize_t>(text.size()));
}

// Reads what is told until `count` calls are; each must be told once.  (In what
// order, and how many at a time, is left open.)
void HearOf(int fd, std::uint32_t first, std::uint32_t count) {
  std::vector<int> told(first + count);
  for (std::uint32_t heard = 0; heard < count;) {
    pollfd one{fd, 0, 0};
    CHECK_THAT(::poll(&one, 1, 5000) == 1);
    CHECK_THAT((one.revents & POLLERR) != 0);
    alignas(cmsghdr) char control[200];
    char data[10];
    iovec iov{data, sizeof data};
    sockaddr_storage name{};
    msghdr message{};
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CHECK_THAT(::recvmsg(fd, &message, MSG_ERRQUEUE) == 0);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    CHECK_THAT(header != nullptr);
    if (heard == 0) {
      Log("flags %x, name %u, control %zu: level %d, type %d, %zu bytes",
          static_cast<unsigned>(message.msg_flags), message.msg_namelen,
          message.msg_controllen, header->cmsg_level, header->cmsg_type,
          header->cmsg_len);
      // Behind the error, who has caused it: nobody.
      const unsigned char* const offender =
          CMSG_DATA(header) + sizeof(sock_extended_err);
      std::string bytes;
      for (std::size_t i = 0;
           i < header->cmsg_len - CMSG_LEN(0) - sizeof(sock_extended_err);
           ++i) {
        bytes += "0123456789abcdef"[offender[i] >> 4];
        bytes += "0123456789abcdef"[offender[i] & 15];
      }
      Log("offender %s", bytes.c_str());
    }
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(header), sizeof error);
    CHECK_THAT(error.ee_errno == 0 && error.ee_type == 0);
    CHECK_THAT(error.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
    CHECK_THAT(error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED);
    CHECK_THAT(error.ee_info >= first && error.ee_info <= error.ee_data);
    CHECK_THAT(error.ee_data < told.size());
    for (std::uint32_t i = error.ee_info; i <= error.ee_data; ++i) {
      CHECK_THAT(++told[i] == 1);
      ++heard;
    }
  }
  pollfd one{fd, 0, 0};
  Result("poll", ::poll(&one, 1, 0));
  char byte;
  Result("no more", ::recv(fd, &byte, 1, MSG_ERRQUEUE));
  Log("told of %u from %u", count, first);
}

// Some calls on TCP, some on a lane, some back on TCP: one row of numbers.
Case zerocopy_numbers(
    "zerocopy_numbers",
    [](int fd) {
      TakePieces(fd, 4);
      Warm(fd);
      TakePieces(fd, 5);
      TakePieces(fd, 3);
      Warm(fd);
      TakePieces(fd, 2);
    },
    [](int fd) {
      AllowZeroCopy(fd);
      for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
      SendPiece(fd, 0);  // takes no number
      Barrier();
      Warm(fd);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      SendPiece(fd, 0);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      HearOf(fd, 0, 7);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      HearOf(fd, 7, 3);
      Warm(fd);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      HearOf(fd, 10, 2);
    },
    {.warm = false});

// Not yet read when the connection leaves its lane, and is shared.
Case zerocopy_leaves(
    "zerocopy_leaves",
    [](int fd) {
      TakePieces(fd, 3);
      TakePieces(fd, 2);
    },
    [](int fd) {
      AllowZeroCopy(fd);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.data.u32 = 5;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      epoll_event seen{};
      Result("epoll", ::epoll_wait(set, &seen, 1, 5000));
      Log("error %d of %u", (seen.events & EPOLLERR) != 0, seen.data.u32);
      fd_set in;
      fd_set out;
      FD_ZERO(&in);
      FD_ZERO(&out);
      FD_SET(fd, &in);
      FD_SET(fd, &out);
      Result("select", ::select(fd + 1, &in, &out, nullptr, nullptr));
      HearOf(fd, 0, 5);
      Result("epoll", ::epoll_wait(set, &seen, 1, 0));
      ::close(set);
    });

void LogError(int set, const char* what) {
  epoll_event event{};
  const int n = ::epoll_wait(set, &event, 1, 0);
  Log("%s: %d, error %d", what, n, n > 0 && (event.events & EPOLLERR) != 0);
}

Case zerocopy_readiness(
    "zerocopy_readiness",
    [](int fd) {
      TakePieces(fd, 1);
      TakePieces(fd, 1);
    },
    [](int fd) {
      AllowZeroCopy(fd);
      const int level = ::epoll_create1(0);
      const int edge = ::epoll_create1(0);
      const int once = ::epoll_create1(0);
      epoll_event event{};
      event.events = 0;
      CHECK_THAT(::epoll_ctl(level, EPOLL_CTL_ADD, fd, &event) == 0);
      event.events = EPOLLIN | EPOLLET;
      CHECK_THAT(::epoll_ctl(edge, EPOLL_CTL_ADD, fd, &event) == 0);
      event.events = EPOLLIN | EPOLLONESHOT;
      CHECK_THAT(::epoll_ctl(once, EPOLL_CTL_ADD, fd, &event) == 0);
      LogError(level, "level, before");
      LogError(once, "once, before");
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 5000));
      Log("revents %x", static_cast<unsigned>(one.revents));
      LogError(level, "level");
      LogError(level, "level again");
      LogError(edge, "edge");
      LogError(edge, "edge again");
      LogError(once, "once");
      LogError(once, "once again");
      fd_set in;
      fd_set out;
      fd_set except;
      FD_ZERO(&in);
      FD_ZERO(&out);
      FD_ZERO(&except);
      FD_SET(fd, &in);
      FD_SET(fd, &except);
      Result("select", ::select(fd + 1, &in, &out, &except, nullptr));
      Log("in %d except %d", FD_ISSET(fd, &in), FD_ISSET(fd, &except));
      int error = -1;
      socklen_t size = sizeof error;
      Result("SO_ERROR", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
      Log("error %d", error);
      char text[4];
      Result("recv", ::recv(fd, text, 4, MSG_DONTWAIT));
      // Without room for what it says, it is gone.
      msghdr message{};
      Result("recvmsg", ::recvmsg(fd, &message, MSG_ERRQUEUE));
      Log("flags %x", static_cast<unsigned>(message.msg_flags));
      LogError(level, "level, read");
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      Result("poll", ::poll(&one, 1, 5000));
      LogError(edge, "a new edge");
      Result("recv", ::recv(fd, text, 4, MSG_ERRQUEUE));
      Result("recv", ::recv(fd, text, 4, MSG_ERRQUEUE));
      for (const int set : {level, edge, once}) ::close(set);
    });

// What one look says of three descriptors: `fd`, which has an unread
// completion and input, another connection, and a pipe; both have input.
void LogThree(const char* when, const int (&fds)[3]) {
  Log("%s", when);
  const int top = std::max({fds[0], fds[1], fds[2]}) + 1;
  const auto poll = [&fds](const char* what, short events, auto&& call) {
    pollfd all[3];
    for (int i = 0; i < 3; ++i) all[i] = {fds[i], events, 0};
    Result(what, call(all));
    for (const pollfd& one : all) Log("revents %x", one.revents);
  };
  constexpr timespec kSecond{1, 0};
  for (const short events : {POLLIN, POLLOUT, POLLIN | POLLOUT, 0}) {
    poll("poll", events, [](pollfd* all) { return ::poll(all, 3, 1000); });
    poll("poll at once", events, [](pollfd* all) { return ::poll(all, 3, 0); });
    poll("ppoll", events, [&kSecond](pollfd* all) {
      return ::ppoll(all, 3, &kSecond, nullptr);
    });
  }
  const auto select = [&fds](const char* what, int sets, auto&& call) {
    fd_set set[3];
    for (int i = 0; i < 3; ++i) {
      FD_ZERO(&set[i]);
      for (const int fd : fds) FD_SET(fd, &set[i]);
    }
    const auto asked = [&](int i) {
      return (sets & 1 << i) != 0 ? &set[i] : nullptr;
    };
    Result(what, call(asked(0), asked(1), asked(2)));
    for (int i = 0; i < 3; ++i) {
      for (const int fd : fds) {
        if (asked(i) != nullptr) Log("set %d: %d", i, FD_ISSET(fd, &set[i]));
      }
    }
  };
  for (const int sets : {1, 2, 4, 7}) {
    select("select", sets, [top](fd_set* in, fd_set* out, fd_set* except) {
      timeval brief{0, 30'000};
      return ::select(top, in, out, except, &brief);
    });
    select("pselect", sets, [top](fd_set* in, fd_set* out, fd_set* except) {
      constexpr timespec kBrief{0, 30'000'000};
      return ::pselect(top, in, out, except, &kBrief, nullptr);
    });
  }
  // Whatever the room, each of them has its turn.
  for (const int room : {1, 2, 3}) {
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < 3; ++i) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u32 = static_cast<std::uint32_t>(i);
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    std::uint32_t told[3] = {};
    const std::uint64_t end = NowMs() + 1000;
    while ((told[0] == 0 || told[1] == 0 || told[2] == 0) && NowMs() < end) {
      epoll_event events[3];
      const int n = ::epoll_wait(set, events, room, 1000);
      CHECK_THAT(n > 0 && n <= room);
      for (int i = 0; i < n; ++i) told[events[i].data.u32] |= events[i].events;
    }
    Log("epoll, room %d: %x %x %x", room, told[0], told[1], told[2]);
    ::close(set);
  }
}

Case zerocopy_beside_others(
    "zerocopy_beside_others",
    [](int fd) {
      const int listener = ListenAndTell();
      const int other = Accept(listener);
      Warm(other);
      TakePieces(fd, 1);
      SendAll(fd, "answer", 6);
      SendAll(other, "other", 5);
      Barrier();
      Barrier();
      for (const int one : {other, listener}) ::close(one);
    },
    [](int fd) {
      const int other = Connect(HearPort());
      Warm(other);
      AllowZeroCopy(fd);
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      CHECK_THAT(::write(ends[1], "pipe", 4) == 4);
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      Barrier();
      AwaitBytes(fd, 6);
      AwaitBytes(other, 5);
      pollfd one{fd, 0, 0};
      Result("poll", ::poll(&one, 1, 5000));
      LogThree("at first", {fd, other, ends[0]});
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      LogThree("back on TCP", {fd, other, ends[0]});
      Barrier();
      for (const int one_fd : {other, ends[0], ends[1]}) ::close(one_fd);
    });

// The connection goes back to TCP in the middle of a call: a handler that comes
// while the bytes are copied runs right behind that, and forks.  Who sleeps in
// the kernel then must still hear of the completion.
std::atomic<int> forks{0};
void ForkInHandler(int) {
  const int saved = errno;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status;
  ::waitpid(child, &status, 0);
  ::poll(nullptr, 0, 10);  // until the sleeper sleeps again
  ++forks;
  errno = saved;
}

void WakesAfterFork(int fd) {
  AllowZeroCopy(fd);
  const int set = ::epoll_create1(0);
  epoll_event event{};
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  std::thread sleeper([set] {
    epoll_event heard{};
    CHECK_THAT(::epoll_wait(set, &heard, 1, 5'000) == 1);
    CHECK_THAT((heard.events & EPOLLERR) != 0);
  });
  ::poll(nullptr, 0, 5);
  std::atomic<bool> now{false};
  const pthread_t sender = ::pthread_self();
  std::thread other([&now, sender] {
    while (!now) std::atomic_signal_fence(std::memory_order_seq_cst);
    ::pthread_kill(sender, SIGUSR1);
  });
  std::vector<char> bytes(100'000);
  const int before = forks;
  now = true;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n =
        ::send(fd, bytes.data() + at, bytes.size() - at, MSG_ZEROCOPY);
    CHECK_THAT(n > 0);
    at += static_cast<std::size_t>(n);
  }
  while (forks == before) ::sched_yield();
  other.join();
  sleeper.join();
  ::close(set);
}

Case zerocopy_fork(
    "zerocopy_wakes_after_a_switch",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        int error;
        if (Drain(fd, &error) != 100'000) Fail("not all has come");
        ::close(fd);
      }
      Log("done");
    },
    [](int) {
      struct sigaction action {};
      action.sa_handler = &ForkInHandler;
      action.sa_flags = SA_RESTART;
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = Connect(port);
        Warm(fd);
        WakesAfterFork(fd);
        ::close(fd);
      }
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 60});

// A socket of AF_INET6 tells it in its own way, also with an IPv4 peer.
void Over6(const char* host, bool server) {
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  socklen_t size = sizeof to;
  CHECK_THAT(::inet_pton(AF_INET6, host, &to.sin6_addr) == 1);
  int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  CHECK_THAT(fd >= 0);
  auto* const name = reinterpret_cast<sockaddr*>(&to);
  if (server) {
    const int listener = fd;
    CHECK_THAT(::bind(listener, name, size) == 0);
    CHECK_THAT(::listen(listener, 1) == 0);
    CHECK_THAT(::getsockname(listener, name, &size) == 0);
    Tell(ntohs(to.sin6_port));
    fd = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd >= 0);
    ::close(listener);
    TakePieces(fd, 2);
    Warm(fd);
    TakePieces(fd, 3);
  } else {
    to.sin6_port = htons(static_cast<std::uint16_t>(Hear()));
    CHECK_THAT(::connect(fd, name, size) == 0);
    AllowZeroCopy(fd);
    for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
    Barrier();
    HearOf(fd, 0, 2);
    Warm(fd);
    for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
    Barrier();
    HearOf(fd, 2, 3);
    // Room for half of what it says, and for no name.
    SendPiece(fd, MSG_ZEROCOPY);
    pollfd one{fd, 0, 0};
    CHECK_THAT(::poll(&one, 1, 5000) == 1);
    alignas(cmsghdr) char control[CMSG_LEN(20)];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    Result("recvmsg", ::recvmsg(fd, &message, MSG_ERRQUEUE));
    Log("flags %x, control %zu", static_cast<unsigned>(message.msg_flags),
        message.msg_controllen);
  }
  ::close(fd);
}

Case zerocopy_6(
    "zerocopy_ipv6", [](int) { Over6("::1", true); },
    [](int) { Over6("::1", false); }, {.warm = false, .connect = false});
Case zerocopy_mapped(
    "zerocopy_mapped", [](int) { Over6("::ffff:127.0.0.1", true); },
    [](int) { Over6("::ffff:127.0.0.1", false); },
    {.warm = false, .connect = false});

// Somebody sleeps when the call is made.
Case zerocopy_wakes(
    "zerocopy_wakes", [](int fd) { TakePieces(fd, 1); },
    [](int fd) {
      AllowZeroCopy(fd);
      std::thread sleeper([fd] {
        pollfd one{fd, 0, 0};
        Result("poll", ::poll(&one, 1, 10'000));
        Log("error %d", (one.revents & POLLERR) != 0);
      });
      // (Asleep or not yet, it must be told.)
      ::poll(nullptr, 0, 50);
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      sleeper.join();
      HearOf(fd, 0, 1);
    });

// A poll for input is about to sleep, or asleep, or has not begun: it is told.
int ZeroCopyRounds() { return Scale(1000); }

void PollWhileDue(int fd) {
  AllowZeroCopy(fd);
  const int rounds = ZeroCopyRounds();
  std::atomic<int> round{-1};
  std::thread sender([&] {
    Random random{Seed()};
    for (int i = 0; i < rounds; ++i) {
      while (round != i) std::atomic_signal_fence(std::memory_order_seq_cst);
      for (std::uint64_t n = random.Below(10'000); n > 0; --n) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      SendPiece(fd, MSG_ZEROCOPY);
    }
  });
  int told = 0;
  for (int i = 0; i < rounds; ++i) {
    round = i;
    while (told <= i) {
      pollfd one{fd, POLLIN, 0};
      if (::poll(&one, 1, 5000) != 1) Fail("not told of %d", told);
      alignas(cmsghdr) char control[200];
      msghdr message{};
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      while (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) == 0) {
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof error);
        told += static_cast<int>(error.ee_data - error.ee_info) + 1;
        message.msg_controllen = sizeof control;
      }
    }
  }
  sender.join();
  Log("told of %d", told);
  Barrier();
}

Case zerocopy_polls("zerocopy_poll_for_input",
                    [](int fd) { TakePieces(fd, ZeroCopyRounds()); },
                    PollWhileDue, {.seconds = 60});

Case zerocopy_not_allowed(
    "zerocopy_not_allowed", [](int fd) { TakePieces(fd, 2); },
    [](int fd) {
      SendPiece(fd, MSG_ZEROCOPY);
      AllowZeroCopy(fd);
      const int off = 0;
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &off, sizeof off) ==
                 0);
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      pollfd one{fd, 0, 0};
      Result("poll", ::poll(&one, 1, 0));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, MSG_ERRQUEUE));
    });

}  // namespace
