// The same where another program goes on with the connection (exec, vfork,
// posix_spawn, system, popen), and where its peer is dead by then.
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/unread.h"

extern char** environ;

namespace {

using namespace pair;

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

}  // namespace
