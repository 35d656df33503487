// Bytes that have come and are not read yet, when the connection changes hands:
// fork, exec, vfork, posix_spawn, system, popen.  Every byte is read once, in
// order, by whoever reads first.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

constexpr std::uint64_t kSeed = 77;
constexpr std::size_t kPiece = 16;
constexpr std::size_t kPieces = 150;
constexpr std::size_t kTotal = kPiece * kPieces;

// The server's half: says kTotal bytes that the client does not read meanwhile.
// With pauses, so that the connection changes its path somewhere among them:
// some are read ahead from TCP, some lie in a ring.
void SayUnread(int fd, std::size_t pieces = kPieces) {
  char text[kPiece];
  RecvAll(fd, text, 1);
  for (std::size_t i = 0; i < pieces; ++i) {
    Pattern(kSeed, i * kPiece, text, kPiece);
    SendAll(fd, text, kPiece);
    if (i < 100) ::poll(nullptr, 0, 1);
  }
}

// The client's half; returns when all is said.
void LetSay(int fd, std::size_t pieces = kPieces) {
  SendAll(fd, "x", 1);
  Barrier();
  int there = 0;
  while (there < static_cast<int>(pieces * kPiece)) {
    CHECK_THAT(::ioctl(fd, FIONREAD, &there) == 0);
    ::poll(nullptr, 0, 1);
  }
  Log("all is there");
}

void Expect(int fd, std::size_t from, std::size_t count) {
  std::vector<char> text(count);
  RecvAll(fd, text.data(), count);
  if (!IsPattern(kSeed, from, text.data(), count)) Fail("not these bytes");
}

void ServerThenEcho(int fd) {
  SayUnread(fd);
  Barrier();
  char text[4];
  RecvAll(fd, text, 4);
  SendAll(fd, text, 4);
  LogDrain(fd);
}

void PingPong(int fd) {
  char text[4] = {};
  SendAll(fd, "ping", 4);
  RecvAll(fd, text, 4);
  Log("%.4s", text);
}

Case child_reads("unread_child_then_parent", ServerThenEcho,
                 [](int fd) {
                   LetSay(fd);
                   Expect(fd, 0, 10);
                   const pid_t child = ::fork();
                   if (child == 0) {
                     Expect(fd, 10, 990);
                     ::_exit(0);
                   }
                   LogChild(child);
                   Expect(fd, 1000, kTotal - 1000);
                   PingPong(fd);
                   ::close(fd);
                 },
                 {.warm = false});

Case parent_reads("unread_parent_then_child", ServerThenEcho,
                  [](int fd) {
                    LetSay(fd);
                    int gate[2];
                    CHECK_THAT(::pipe(gate) == 0);
                    const pid_t child = ::fork();
                    if (child == 0) {
                      char byte;
                      ::close(gate[1]);
                      ::read(gate[0], &byte, 1);
                      Expect(fd, 700, kTotal - 700);
                      PingPong(fd);
                      ::_exit(0);
                    }
                    Expect(fd, 0, 700);
                    ::close(gate[1]);
                    ::close(fd);
                    LogChild(child);
                  },
                  {.warm = false});

// Four processes read at once: together they get each byte once.
Case all_read("unread_all_at_once", ServerThenEcho,
              [](int fd) {
                LetSay(fd);
                auto* seen = static_cast<std::atomic<int>*>(
                    ::mmap(nullptr, 4096 * 4, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
                CHECK_THAT(seen != MAP_FAILED);
                // Which byte it is shows in its value only where values differ,
                // so the sums are compared.
                std::atomic<int>* count = seen + 512;
                pid_t children[3];
                for (pid_t& child : children) {
                  child = ::fork();
                  if (child == 0) break;
                }
                while (*count < static_cast<int>(kTotal)) {
                  unsigned char text[7];
                  const ssize_t n = ::recv(fd, text, sizeof text, MSG_DONTWAIT);
                  if (n < 0) continue;
                  CHECK_THAT(n > 0);
                  for (ssize_t i = 0; i < n; ++i) ++seen[text[i]];
                  *count += static_cast<int>(n);
                }
                if (children[0] == 0 || children[1] == 0 || children[2] == 0)
                  ::_exit(0);
                for (const pid_t child : children) LogChild(child);
                std::vector<unsigned char> all(kTotal);
                Pattern(kSeed, 0, all.data(), kTotal);
                for (const unsigned char byte : all) --seen[byte];
                for (int i = 0; i < 256; ++i) CHECK_THAT(seen[i] == 0);
                Log("each byte once");
                PingPong(fd);
                ::close(fd);
              },
              {.warm = false});

// A reader that dies while it reads takes nothing away from the others but what
// it has read.
Case killed_reader("unread_killed_reader", ServerThenEcho,
                   [](int fd) {
                     LetSay(fd);
                     auto* read_by_child =
                         static_cast<std::atomic<std::size_t>*>(
                             ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0));
                     const pid_t child = ::fork();
                     if (child == 0) {
                       char byte;
                       while (*read_by_child < 500) {
                         RecvAll(fd, &byte, 1);
                         ++*read_by_child;
                       }
                       ::pause();
                     }
                     while (*read_by_child < 500) ::poll(nullptr, 0, 1);
                     ::kill(child, SIGKILL);
                     LogChild(child);
                     Expect(fd, 500, kTotal - 500);
                     PingPong(fd);
                     ::close(fd);
                   },
                   {.warm = false});

void LogReadiness(int fd) {
  pollfd one{fd, POLLIN | POLLOUT, 0};
  Result("poll", ::poll(&one, 1, 5000));
  Log("revents %x", static_cast<unsigned>(one.revents));
  pollfd two[2] = {{fd, POLLIN, 0}, {fd, POLLOUT, 0}};
  Result("poll twice", ::poll(two, 2, 5000));
  fd_set in;
  fd_set out;
  FD_ZERO(&in);
  FD_ZERO(&out);
  FD_SET(fd, &in);
  timeval limit{5, 0};
  Result("select", ::select(fd + 1, &in, &out, nullptr, &limit));
  Log("in %d out %d", FD_ISSET(fd, &in), FD_ISSET(fd, &out));
  int there = 0;
  Result("FIONREAD", ::ioctl(fd, FIONREAD, &there));
  Log("there %d", there);
  char text[8];
  Result("peek", ::recv(fd, text, 8, MSG_PEEK));
}

void LogEpoll(int set, const char* what, std::size_t most = 4) {
  epoll_event events[4];
  const int n = ::epoll_wait(set, events, static_cast<int>(most), 0);
  Result(what, n);
  for (int i = 0; i < n; ++i) {
    Log("events %x of %d", static_cast<unsigned>(events[i].events),
        static_cast<int>(events[i].data.u32));
  }
}

Case readiness("unread_readiness", ServerThenEcho,
               [](int fd) {
                 LetSay(fd);
                 int gate[2];
                 CHECK_THAT(::pipe(gate) == 0);
                 const pid_t child = ::fork();
                 if (child == 0) {
                   char byte;
                   ::close(gate[1]);
                   ::read(gate[0], &byte, 1);
                   LogReadiness(fd);
                   Expect(fd, 0, kTotal);
                   pollfd one{fd, POLLIN, 0};
                   Result("poll", ::poll(&one, 1, 0));
                   ::_exit(0);
                 }
                 ::close(gate[0]);
                 LogReadiness(fd);
                 ::close(gate[1]);
                 LogChild(child);
                 // The child has taken all of it.
                 pollfd one{fd, POLLIN, 0};
                 Result("poll", ::poll(&one, 1, 0));
                 char byte;
                 Result("recv", ::recv(fd, &byte, 1, MSG_DONTWAIT));
                 PingPong(fd);
                 ::close(fd);
               },
               {.warm = false});

Case in_epoll("unread_epoll", ServerThenEcho,
              [](int fd) {
                const int level = ::epoll_create1(0);
                const int edge = ::epoll_create1(0);
                const int once = ::epoll_create1(0);
                epoll_event event{};
                event.data.u32 = 5;
                event.events = EPOLLIN | EPOLLOUT;
                CHECK_THAT(::epoll_ctl(level, EPOLL_CTL_ADD, fd, &event) == 0);
                event.events = EPOLLIN | EPOLLET;
                CHECK_THAT(::epoll_ctl(edge, EPOLL_CTL_ADD, fd, &event) == 0);
                event.events = EPOLLIN | EPOLLONESHOT;
                CHECK_THAT(::epoll_ctl(once, EPOLL_CTL_ADD, fd, &event) == 0);
                LetSay(fd);
                const pid_t child = ::fork();
                if (child == 0) ::_exit(0);
                LogChild(child);
                LogEpoll(level, "level");
                LogEpoll(level, "level again");
                LogEpoll(level, "level, room for one", 1);
                LogEpoll(edge, "edge");
                LogEpoll(edge, "edge again");
                LogEpoll(once, "once");
                LogEpoll(once, "once again");
                event.events = EPOLLIN | EPOLLONESHOT;
                Result("rearm", ::epoll_ctl(once, EPOLL_CTL_MOD, fd, &event));
                LogEpoll(once, "once rearmed");
                // All but one byte, then the last.
                Expect(fd, 0, kTotal - 1);
                LogEpoll(level, "level, one byte left");
                Expect(fd, kTotal - 1, 1);
                LogEpoll(level, "level, nothing left");
                Result("delete",
                       ::epoll_ctl(level, EPOLL_CTL_DEL, fd, nullptr));
                LogEpoll(level, "deleted");
                PingPong(fd);
                ::close(fd);
              },
              {.warm = false});

// Nothing but what was read ahead: the kernel's own queue is empty.
Case few(
    "unread_nothing_else",
    [](int fd) {
      char text[kPiece];
      RecvAll(fd, text, 1);
      Pattern(kSeed, 0, text, kPiece);
      SendAll(fd, text, kPiece);
      Barrier();
      RecvAll(fd, text, 4);
      SendAll(fd, text, 4);
      LogDrain(fd);
    },
    [](int fd) {
      const int level = ::epoll_create1(0);
      const int edge = ::epoll_create1(0);
      const int once = ::epoll_create1(0);
      epoll_event event{};
      event.data.u32 = 5;
      event.events = EPOLLIN | EPOLLOUT;
      CHECK_THAT(::epoll_ctl(level, EPOLL_CTL_ADD, fd, &event) == 0);
      event.events = EPOLLIN | EPOLLET;
      CHECK_THAT(::epoll_ctl(edge, EPOLL_CTL_ADD, fd, &event) == 0);
      event.events = EPOLLIN | EPOLLOUT | EPOLLONESHOT;
      CHECK_THAT(::epoll_ctl(once, EPOLL_CTL_ADD, fd, &event) == 0);
      SendAll(fd, "x", 1);
      Barrier();
      // Time to be read ahead.
      ::poll(nullptr, 0, 100);
      const pid_t child = ::fork();
      if (child == 0) {
        LogReadiness(fd);
        Expect(fd, 0, 4);
        ::_exit(0);
      }
      LogChild(child);
      LogReadiness(fd);
      LogEpoll(level, "level");
      LogEpoll(level, "level again");
      LogEpoll(level, "level, room for one", 1);
      LogEpoll(edge, "edge");
      LogEpoll(edge, "edge again");
      LogEpoll(once, "once");
      LogEpoll(once, "once again");
      event.events = EPOLLIN | EPOLLONESHOT;
      Result("rearm", ::epoll_ctl(once, EPOLL_CTL_MOD, fd, &event));
      LogEpoll(once, "once rearmed");
      Expect(fd, 4, kPiece - 5);
      LogEpoll(level, "level, one byte left");
      Expect(fd, kPiece - 1, 1);
      LogEpoll(level, "level, nothing left");
      PingPong(fd);
      ::close(fd);
    },
    {.warm = false});

Case flags(
    "unread_flags",
    [](int fd) {
      SayUnread(fd);
      Barrier();
      SendAll(fd, "tail", 4);
      LogDrain(fd);
    },
    [](int fd) {
      LetSay(fd);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      LogChild(child);
      std::vector<char> text(kTotal + 100);
      CHECK_THAT(::recv(fd, text.data(), 50, MSG_PEEK) == 50);
      CHECK_THAT(IsPattern(kSeed, 0, text.data(), 50));
      CHECK_THAT(::recv(fd, nullptr, 20, MSG_TRUNC) == 20);
      char a[3];
      char b[7];
      const iovec parts[2] = {{a, 3}, {b, 7}};
      CHECK_THAT(::readv(fd, parts, 2) == 10);
      CHECK_THAT(IsPattern(kSeed, 20, a, 3) && IsPattern(kSeed, 23, b, 7));
      // Across the border to what is the kernel's, for sure.
      const ssize_t n = ::recv(fd, text.data(), kTotal + 4 - 30, MSG_WAITALL);
      Result("all", n);
      CHECK_THAT(IsPattern(kSeed, 30, text.data(), kTotal - 30));
      Log("%.4s", text.data() + kTotal - 30);
      ::close(fd);
    },
    {.warm = false});

// A peek for all waits for the rest, although a switch has read a part of it
// ahead.  (So many pieces fit a ring in shared memory.)
constexpr std::size_t kPeeked = 60;
Case peeked(
    "unread_peeked",
    [](int fd) {
      SayUnread(fd, kPeeked);
      Barrier();
      // (Behind the client's first look, most times.)
      ::poll(nullptr, 0, 20);
      SendAll(fd, "tail", 4);
      LogDrain(fd);
    },
    [](int fd) {
      constexpr std::size_t kSaid = kPeeked * kPiece;
      LetSay(fd, kPeeked);
      std::vector<char> text(kSaid + 4);
      Result("peek",
             ::recv(fd, text.data(), text.size(), MSG_PEEK | MSG_WAITALL));
      CHECK_THAT(IsPattern(kSeed, 0, text.data(), kSaid));
      Log("%.4s", text.data() + kSaid);
      RecvAll(fd, text.data(), text.size());
      ::close(fd);
    },
    {.warm = false});

// What remains goes to `cat`, whose output is read back here.
void ExpectCopy(int fd, std::size_t from) {
  std::size_t at = from;
  char text[256];
  for (;;) {
    const ssize_t n = ::read(fd, text, sizeof text);
    if (n < 0 && errno == EINTR) continue;
    CHECK_THAT(n >= 0);
    if (n == 0) break;
    CHECK_THAT(IsPattern(kSeed, at, text, static_cast<std::size_t>(n)));
    at += static_cast<std::size_t>(n);
  }
  Log("copied up to %zu", at);
}

void SayAndEnd(int fd) {
  SayUnread(fd);
  Barrier();
  ::shutdown(fd, SHUT_WR);
  LogDrain(fd);
}

enum class Way {
  kForkExec,
  kVfork,
  kSpawn,
  kSystem,
  kPopen,
  kAlone,
  kVforkAlone
};

void ToCat(int fd, Way way) {
  LetSay(fd);
  Expect(fd, 0, 10);
  int out[2];
  CHECK_THAT(::pipe(out) == 0);
  pid_t child = -1;
  switch (way) {
    case Way::kForkExec:
    case Way::kVfork:
    case Way::kAlone:
    case Way::kVforkAlone:
      child =
          way == Way::kVfork || way == Way::kVforkAlone ? ::vfork() : ::fork();
      if (child == 0) {
        ::dup2(fd, 0);
        ::dup2(out[1], 1);
        ::close(out[0]);
        ::close(fd);
        if (way == Way::kAlone || way == Way::kVforkAlone) {
          // A program that nothing follows.
          char* const nothing[] = {nullptr};
          ::execle("/bin/cat", "cat", static_cast<char*>(nullptr), nothing);
        }
        ::execlp("cat", "cat", static_cast<char*>(nullptr));
        ::_exit(99);
      }
      break;
    case Way::kSpawn: {
      posix_spawn_file_actions_t actions;
      ::posix_spawn_file_actions_init(&actions);
      ::posix_spawn_file_actions_adddup2(&actions, fd, 0);
      ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
      ::posix_spawn_file_actions_addclose(&actions, fd);
      ::posix_spawn_file_actions_addclose(&actions, out[0]);
      char name[] = "cat";
      char* argv[] = {name, nullptr};
      CHECK_THAT(
          ::posix_spawnp(&child, "cat", &actions, nullptr, argv, environ) == 0);
      ::posix_spawn_file_actions_destroy(&actions);
      break;
    }
    case Way::kSystem: {
      char command[64];
      std::snprintf(command, sizeof command, "cat <&%d >&%d", fd, out[1]);
      Result("system", ::system(command));
      break;
    }
    case Way::kPopen: {
      char command[64];
      std::snprintf(command, sizeof command, "exec cat <&%d", fd);
      std::FILE* pipe = ::popen(command, "r");
      CHECK_THAT(pipe != nullptr);
      ::close(fd);
      ExpectCopy(::fileno(pipe), 10);
      Result("pclose", ::pclose(pipe));
      return;
    }
  }
  ::close(out[1]);
  ::close(fd);
  ExpectCopy(out[0], 10);
  if (child > 0) LogChild(child);
}

Case to_fork("unread_fork_exec", SayAndEnd,
             [](int fd) { ToCat(fd, Way::kForkExec); }, {.warm = false});
Case to_vfork("unread_vfork_exec", SayAndEnd,
              [](int fd) { ToCat(fd, Way::kVfork); }, {.warm = false});
Case to_alone("unread_fork_exec_alone", SayAndEnd,
              [](int fd) { ToCat(fd, Way::kAlone); }, {.warm = false});
Case to_vfork_alone("unread_vfork_exec_alone", SayAndEnd,
                    [](int fd) { ToCat(fd, Way::kVforkAlone); },
                    {.warm = false});
Case to_spawn("unread_spawn", SayAndEnd, [](int fd) { ToCat(fd, Way::kSpawn); },
              {.warm = false});
Case to_system("unread_system", SayAndEnd,
               [](int fd) { ToCat(fd, Way::kSystem); }, {.warm = false});
Case to_popen("unread_popen", SayAndEnd, [](int fd) { ToCat(fd, Way::kPopen); },
              {.warm = false});

// popen takes the environment from the variable, which is all threads'.  (What
// a dead peer has left goes to the command by memory that is named there.)
Case popens(
    "unread_popen_leaves_no_trace",
    [](int fd) {
      char text[kTotal];
      Pattern(kSeed, 0, text, kTotal);
      SendAll(fd, text, kTotal);
      ::_exit(0);
    },
    [](int fd) {
      pollfd end{fd, POLLRDHUP, 0};
      CHECK_THAT(::poll(&end, 1, -1) == 1);
      Expect(fd, 0, 10);
      char** const before = environ;
      const auto run = [](int count) {
        for (int i = 0; i < count; ++i) {
          std::FILE* pipe = ::popen("exit 0", "r");
          CHECK_THAT(pipe != nullptr && ::pclose(pipe) == 0);
        }
      };
      run(3);
      const std::size_t taken = ::mallinfo2().uordblks;
      run(20);
      // (The environment of this many would be more.)
      Log("memory is kept %d", ::mallinfo2().uordblks > taken + 4000);
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) threads.emplace_back(run, 25);
      for (auto& thread : threads) thread.join();
      Log("as before: %d %d", environ == before,
          ::getenv("RCSOCK_INHERIT") == nullptr);
      Expect(fd, 10, kTotal - 10);
      ::close(fd);
    });

// The same process goes on as another program, the descriptor close-on-exec and
// its copy not.
Case to_self(
    "unread_exec_self",
    [](int fd) {
      SayUnread(fd);
      Barrier();
      ::shutdown(fd, SHUT_WR);
      // What it has read comes back.
      ExpectCopy(fd, 10);
    },
    [](int fd) {
      LetSay(fd);
      Expect(fd, 0, 10);
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      ::dup2(fd, 0);
      ::dup2(fd, 1);
      ::execlp("cat", "cat", static_cast<char*>(nullptr));
      Fail("exec");
    },
    {.warm = false});

// An exec that fails changes nothing.
Case fails("unread_exec_fails", ServerThenEcho,
           [](int fd) {
             LetSay(fd);
             Result("exec", ::execlp("/nowhere/nothing", "nothing",
                                     static_cast<char*>(nullptr)));
             Expect(fd, 0, kTotal);
             PingPong(fd);
             ::close(fd);
           },
           {.warm = false});

// The peer is gone when the connection changes hands: nobody can send again
// what lies unread, and only a program that is followed can be told of it.
Case dead_peer(
    "unread_of_the_dead",
    [](int fd) {
      SayUnread(fd);
      Barrier();
      ::_exit(0);
    },
    [](int fd) {
      LetSay(fd);
      pollfd one{fd, POLLRDHUP, 0};
      Result("poll", ::poll(&one, 1, 10'000));
      Expect(fd, 0, 10);
      ::dup2(fd, 0);
      int out[2];
      CHECK_THAT(::pipe(out) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::dup2(out[1], 1);
        ::close(out[0]);
        // (PAIR_CAT: one that is linked with the library.)
        const char* cat = std::getenv("PAIR_CAT");
        if (cat == nullptr) cat = "cat";
        ::execlp(cat, "cat", static_cast<char*>(nullptr));
        ::_exit(99);
      }
      ::close(out[1]);
      ::close(fd);
      ::close(0);
      ExpectCopy(out[0], 10);
      LogChild(child);
    },
    {.warm = false});

// The time that recvmsg told; 0: none.
std::int64_t ReadStamped(int fd, void* to, std::size_t length, int type) {
  iovec iov{to, length};
  alignas(cmsghdr) char control[64];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  CHECK_THAT(::recvmsg(fd, &message, MSG_WAITALL) ==
             static_cast<ssize_t>(length));
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return 0;
  CHECK_THAT(header->cmsg_level == SOL_SOCKET && header->cmsg_type == type);
  std::int64_t time[2];
  CHECK_THAT(header->cmsg_len == CMSG_LEN(sizeof time));
  std::memcpy(time, CMSG_DATA(header), sizeof time);
  return time[0] * 1'000'000 + time[1] / (type == SO_TIMESTAMPNS ? 1000 : 1);
}

std::int64_t RealUs() {
  timespec now{};
  CHECK_THAT(::clock_gettime(CLOCK_REALTIME, &now) == 0);
  return now.tv_sec * std::int64_t{1'000'000} + now.tv_nsec / 1000;
}

// What a peer that was killed has said, part of which a switch has read ahead
// of this end, has its time too.  (So many pieces fit a ring.)
void ReadOfTheKilled(int option) {
  constexpr std::size_t kFew = 80;
  int port;
  const int listener = Listen(&port);
  int gate[2];
  CHECK_THAT(::pipe(gate) == 0);
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  char text[kPiece];
  if (child == 0) {
    const int fd = Connect(port);
    RecvAll(fd, text, 1);
    for (std::size_t i = 0; i < kFew; ++i) {
      Pattern(kSeed, i * kPiece, text, kPiece);
      SendAll(fd, text, kPiece);
      if (i < 60) ::poll(nullptr, 0, 2);
    }
    // Not before all is there: what an RDMA device has not sent yet dies with
    // its process.  (At exit it would send again what has not been read.)
    ::read(gate[0], text, 1);
    ::kill(::getpid(), SIGKILL);
  }
  const int fd = ::accept(listener, nullptr, nullptr);
  const int on = 1;
  Result("option", ::setsockopt(fd, SOL_SOCKET, option, &on, sizeof on));
  AwaitStamps();
  std::int64_t last = RealUs();
  SendAll(fd, "x", 1);
  int there = 0;
  while (there < static_cast<int>(kPiece * kFew)) {
    CHECK_THAT(::ioctl(fd, FIONREAD, &there) == 0);
    ::poll(nullptr, 0, 1);
  }
  CHECK_THAT(::write(gate[1], "k", 1) == 1);
  pollfd one{fd, POLLRDHUP, 0};
  Result("poll", ::poll(&one, 1, 10'000));
  std::size_t stamped = 0;
  for (std::size_t i = 0; i < kFew; ++i) {
    const std::int64_t time = ReadStamped(fd, text, kPiece, option);
    CHECK_THAT(IsPattern(kSeed, i * kPiece, text, kPiece));
    if (time >= last && time <= RealUs()) ++stamped;
    if (time != 0) last = time;
  }
  Log("stamped %zu", stamped);
  LogChild(child);
}

const Options kAlone{.warm = false, .connect = false};
Case stamps(
    "unread_timestamp", [](int) {}, [](int) { ReadOfTheKilled(SO_TIMESTAMP); },
    kAlone);
Case stamps_ns(
    "unread_timestamp_ns", [](int) {},
    [](int) { ReadOfTheKilled(SO_TIMESTAMPNS); }, kAlone);

// Past libc: rcsock leaves its lanes before a filter that it hears of, and this
// one does it no harm.
long SetFilter(const sock_fprog* filter) {
  register long r10 __asm__("r10") = 0;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(SYS_prctl), "D"(PR_SET_SECCOMP),
                     "S"(SECCOMP_MODE_FILTER), "d"(filter), "r"(r10)
                   : "rcx", "r11", "memory");
  return result;
}

// clone() fails in this thread from now on.
void ForbidClone() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{5, program};
  CHECK_THAT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK_THAT(SetFilter(&all) == 0);
}

// A fork that fails shares nothing: the connection may leave TCP again.
Case failed_fork(
    "failed_fork",
    [](int fd) {
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      ForbidClone();
      Result("fork", ::fork());
      Warm(fd);
      ::close(fd);
    });

}  // namespace
