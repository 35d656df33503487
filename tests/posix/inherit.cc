// Bytes that have come and are not read yet, when the connection is shared by
// fork.  Every byte is read once, in order, by whoever reads first.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/unread.h"

namespace {

using namespace pair;

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
