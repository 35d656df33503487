// Processes that are killed: what they have written arrives.
#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// Rounds between two processes that end, each with a connection of its own.
// (Their parent has none: a child of one that has used an RDMA device can't.)
void EndRounds(int rounds, void (*answers)(int fd), void (*asks)(int fd)) {
  for (int i = 0; i < rounds; ++i) {
    int port;
    const int listener = Listen(&port);
    pid_t ends[2];
    for (int end = 0; end < 2; ++end) {
      ends[end] = ::fork();
      CHECK_THAT(ends[end] >= 0);
      if (ends[end] > 0) continue;
      const int fd =
          end == 0 ? ::accept(listener, nullptr, nullptr) : Connect(port);
      CHECK_THAT(fd >= 0);
      ::close(listener);
      WarmAs(fd, end == 1);
      (end == 0 ? answers : asks)(fd);
      ::_exit(0);
    }
    ::close(listener);
    for (const pid_t end : {ends[1], ends[0]}) {
      CHECK_THAT(::waitpid(end, nullptr, 0) == end);
    }
  }
}

constexpr std::size_t kAsked = 100;

// A server that reads all and exits has ended the stream in order.
Case exit_when_read(
    "exit_when_all_is_read",
    [](int) {
      EndRounds(
          12,
          [](int fd) {
            char request[kAsked];
            RecvAll(fd, request, sizeof request);
          },
          [](int fd) {
            const char request[kAsked] = {};
            SendAll(fd, request, sizeof request);
            LogDrain(fd);
          });
    },
    [](int) {}, {.warm = false, .connect = false, .seconds = 60});

// kill -9 of one that has read all: when the other end knows that it has come,
// and at once, when a lane of another host may not have heard of it.
void KillReaders(bool at_once) {
  static int told[2];
  static bool knows;
  CHECK_THAT(::pipe(told) == 0);
  knows = !at_once;
  EndRounds(
      12,
      [](int fd) {
        char request[kAsked];
        RecvAll(fd, request, sizeof request);
        const pid_t reader = ::getpid();
        ::write(told[1], &reader, sizeof reader);
        for (;;) ::pause();
      },
      [](int fd) {
        const char request[kAsked] = {};
        SendAll(fd, request, sizeof request);
        pid_t reader;
        CHECK_THAT(::read(told[0], &reader, sizeof reader) == sizeof reader);
        for (int unread = 1; knows && unread != 0; ::poll(nullptr, 0, 1)) {
          CHECK_THAT(::ioctl(fd, SIOCOUTQ, &unread) == 0);
        }
        CHECK_THAT(::kill(reader, SIGKILL) == 0);
        int error;
        const std::size_t n = Drain(fd, &error);
        // (docs/compatibility.md)
        if (!knows && error == ECONNRESET) error = 0;
        Log("%zu, then %s", n, error == 0 ? "the end" : ErrorName(error));
      });
}
Case kill_reader(
    "kill_when_all_is_read", [](int) { KillReaders(false); }, [](int) {},
    {.warm = false, .connect = false, .seconds = 60});
Case kill_reader_at_once(
    "kill_when_all_is_just_read", [](int) { KillReaders(true); }, [](int) {},
    {.warm = false, .connect = false, .seconds = 60});

// kill -9 at a random moment: the survivor gets a prefix that holds all that
// the victim's writes had returned for, and then an end; it never waits for
// ever.
void KillRound(bool kill_writer, std::uint64_t seed) {
  int port;
  const int listener = Listen(&port);
  int told[2];
  CHECK_THAT(::pipe(told) == 0);
  const pid_t victim = ::fork();
  CHECK_THAT(victim >= 0);
  if (victim == 0) {
    ::close(listener);
    const int fd = Connect(port);
    char message[64];
    std::vector<char> buffer(30'000);
    std::uint64_t at = 0;
    Random random{seed};
    for (int i = 0; i < 300; ++i) {
      SendAll(fd, message, sizeof message);
      RecvAll(fd, message, sizeof message);
    }
    ::write(told[1], "g", 1);
    for (;;) {
      if (kill_writer) {
        const std::size_t n = 1 + random.Below(buffer.size());
        Pattern(seed, at, buffer.data(), n);
        SendAll(fd, buffer.data(), n);
        at += n;
        ::write(told[1], &at, sizeof at);
      } else {
        const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
        if (n <= 0 ||
            !IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
          ::_exit(1);
        }
        at += static_cast<std::size_t>(n);
      }
    }
  }
  ::close(told[1]);
  const int fd = Accept(listener);
  ::close(listener);
  char message[64];
  for (int i = 0; i < 300; ++i) {
    RecvAll(fd, message, sizeof message);
    SendAll(fd, message, sizeof message);
  }
  char go;
  CHECK_THAT(::read(told[0], &go, 1) == 1);
  Random random{seed * 77};
  const std::uint64_t limit = 1000 + random.Below(1'500'000);
  std::vector<char> buffer(40'000);
  std::uint64_t at = 0;
  bool killed = false;
  std::uint64_t promised = 0;
  for (;;) {
    ssize_t n;
    if (kill_writer) {
      n = ::recv(fd, buffer.data(), 1 + random.Below(buffer.size() - 1), 0);
      if (n > 0 &&
          !IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
        Fail("foreign byte near %llu", static_cast<unsigned long long>(at));
      }
    } else {
      Pattern(seed, at, buffer.data(), buffer.size());
      n = ::send(fd, buffer.data(), 1 + random.Below(buffer.size() - 1),
                 MSG_NOSIGNAL);
    }
    if (n < 0 && errno != ECONNRESET && errno != EPIPE) {
      Fail("survivor: %s", ErrorName(errno));
    }
    if (n <= 0) break;
    at += static_cast<std::uint64_t>(n);
    std::uint64_t told_now;
    if (kill_writer) {
      pollfd one{told[0], POLLIN, 0};
      while (::poll(&one, 1, 0) == 1 &&
             ::read(told[0], &told_now, sizeof told_now) == sizeof told_now) {
        promised = told_now;
      }
    }
    if (!killed && at >= limit) {
      ::kill(victim, SIGKILL);
      killed = true;
    }
  }
  if (!killed)
    Fail("ended before the kill at %llu", static_cast<unsigned long long>(at));
  int status;
  CHECK_THAT(::waitpid(victim, &status, 0) == victim);
  if (kill_writer) {
    std::uint64_t told_now;
    while (::read(told[0], &told_now, sizeof told_now) == sizeof told_now) {
      promised = told_now;
    }
    // A victim with unread data of ours resets; here it had none.
    if (at < promised) {
      Fail("%llu promised, %llu came",
           static_cast<unsigned long long>(promised),
           static_cast<unsigned long long>(at));
    }
  }
  ::close(told[0]);
  ::close(fd);
}

Case kills(
    "kill_rounds",
    [](int) {
      const int rounds = Scale(20);
      for (int i = 0; i < rounds; ++i) KillRound(true, Seed() * 1000 + i);
      Log("done");
    },
    [](int) {
      const int rounds = Scale(20);
      for (int i = 0; i < rounds; ++i) KillRound(false, Seed() * 1000 + i);
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 60});

// kill -9 while the connection moves to a lane, at some moment of the first
// writes: every byte of a write that has returned arrives.
// `unread`: what the other end has sent last is not read, so TCP ends by a
// reset, and what has not been read by then may be lost.
void KillItself(bool connects, bool unread, std::uint64_t seed) {
  int port;
  const int listener = Listen(&port);
  auto* written = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
             -1, 0));
  CHECK_THAT(written != MAP_FAILED);
  const pid_t victim = ::fork();
  CHECK_THAT(victim >= 0);
  const bool child = victim == 0;
  int fd;
  if (child == connects) {
    ::close(listener);
    fd = Connect(port);
  } else {
    fd = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd >= 0);
    ::close(listener);
  }
  char message[64];
  for (int i = 0; i < 20; ++i) {
    if (child) SendAll(fd, message, sizeof message);
    RecvAll(fd, message, sizeof message);
    if (!child) SendAll(fd, message, sizeof message);
  }
  if (unread && !child) SendAll(fd, message, sizeof message);
  if (child) {
    pollfd sent{fd, POLLIN, 0};
    if (unread) CHECK_THAT(::poll(&sent, 1, 5000) == 1);
    Random random{seed};
    const std::uint64_t writes = random.Below(60);
    for (std::uint64_t i = 0; i < writes; ++i) {
      Pattern(seed, *written, message, sizeof message);
      SendAll(fd, message, sizeof message);
      *written += sizeof message;
      for (std::uint64_t n = random.Below(20'000); n > 0; --n) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }
    ::kill(::getpid(), SIGKILL);
  }
  std::uint64_t at = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, message, sizeof message, 0);
    // (Or EOF, in a switch: docs/compatibility.md.)
    if (n < 0 && unread && errno == ECONNRESET) break;
    if (n < 0) Fail("recv: %s", ErrorName(errno));
    if (n == 0) break;
    CHECK_THAT(IsPattern(seed, at, message, static_cast<std::size_t>(n)));
    at += static_cast<std::uint64_t>(n);
  }
  int status;
  CHECK_THAT(::waitpid(victim, &status, 0) == victim);
  if (unread ? at > *written : at != *written) {
    Fail("seed %llu: %llu written, %llu came",
         static_cast<unsigned long long>(seed),
         static_cast<unsigned long long>(*written),
         static_cast<unsigned long long>(at));
  }
  ::munmap(written, 4096);
  ::close(fd);
}

void KillRounds(bool connects, bool unread) {
  for (int i = 0; i < Scale(40); ++i) {
    KillItself(connects, unread, Seed() * 1000 + i);
  }
  Log("done");
}

Case kills_in_switch(
    "killed_in_the_switch", [](int) { KillRounds(true, false); },
    [](int) { KillRounds(false, false); },
    {.warm = false, .connect = false, .seconds = 60});

Case kills_with_unread(
    "killed_with_unread_in_the_switch", [](int) { KillRounds(true, true); },
    [](int) { KillRounds(false, true); },
    {.warm = false, .connect = false, .seconds = 60});

// The survivor leaves the lane of its own will, and the victim does not hear of
// it any more: all its threads but the one that writes stand still.
std::vector<pid_t> StopOthers(pid_t process) {
  std::vector<pid_t> stopped;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task", process);
  DIR* const tasks = ::opendir(path);
  CHECK_THAT(tasks != nullptr);
  while (const dirent* task = ::readdir(tasks)) {
    const pid_t thread = std::atoi(task->d_name);
    if (thread == 0 || thread == process) continue;
    CHECK_THAT(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0);
    CHECK_THAT(::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0);
    CHECK_THAT(::waitpid(thread, nullptr, __WALL) == thread);
    stopped.push_back(thread);
  }
  ::closedir(tasks);
  return stopped;
}

constexpr std::size_t kBefore = 1000;  // unread when the lane is left
// What the ring has room for, in bytes and messages.
constexpr std::size_t kBehind = 100'000;
constexpr std::size_t kPiece = 1000;

void KillBehindDemotion(bool connects) {
  int port;
  const int listener = Listen(&port);
  int go[2];
  int wrote[2];
  CHECK_THAT(::pipe(go) == 0 && ::pipe(wrote) == 0);
  const pid_t victim = ::fork();
  CHECK_THAT(victim >= 0);
  const bool child = victim == 0;
  const int fd = child == connects ? Connect(port) : Accept(listener);
  ::close(listener);
  WarmAs(fd, connects == child);
  std::vector<char> bytes(kBefore + kBehind);
  Pattern(1, 0, bytes.data(), bytes.size());
  if (child) {
    char word;
    SendAll(fd, bytes.data(), kBefore);
    ::write(wrote[1], "w", 1);
    CHECK_THAT(::read(go[0], &word, 1) == 1);
    for (std::size_t at = kBefore; at < bytes.size(); at += kPiece) {
      SendAll(fd, bytes.data() + at, kPiece);
    }
    ::write(wrote[1], "w", 1);
    for (;;) ::pause();
  }
  char word;
  CHECK_THAT(::read(wrote[0], &word, 1) == 1);
  // (Within a switch they are needed by the one that writes, and a kill may
  // lose bytes: docs/protocol.md.)
  std::vector<pid_t> stopped;
  const char* const warm = std::getenv("PAIR_WARM");
  const bool on_lane = warm != nullptr && std::strcmp(warm, "lane") == 0;
  if (on_lane) stopped = StopOthers(victim);
  // (It waits a while for the peer, and gives up.)
  const int flags = ::fcntl(fd, F_GETFL);
  CHECK_THAT(::fcntl(fd, F_SETFL, flags | O_ASYNC) == 0);
  std::vector<char> got(bytes.size());
  RecvAll(fd, got.data(), kBefore / 2);
  ::write(go[1], "g", 1);
  CHECK_THAT(::read(wrote[0], &word, 1) == 1);
  std::size_t had = kBefore / 2;
  if (!on_lane) {
    RecvAll(fd, got.data() + had, bytes.size() - had);
    had = bytes.size();
  }
  CHECK_THAT(::kill(victim, SIGKILL) == 0);
  for (const pid_t thread : stopped) ::waitpid(thread, nullptr, __WALL);
  CHECK_THAT(::waitpid(victim, nullptr, 0) == victim);
  RecvAll(fd, got.data() + had, bytes.size() - had);
  CHECK_THAT(got == bytes);
  LogDrain(fd);
  ::close(fd);
}

Case kills_behind(
    "killed_behind_a_demotion", [](int) { KillBehindDemotion(true); },
    [](int) { KillBehindDemotion(false); },
    {.warm = false, .connect = false, .seconds = 60});

// The survivor reads nothing, and its buffer and the victim's are small.  What
// is unread is sent back to TCP, which does not take all of it: the rest is in
// the ring when the victim is killed.
void KillBehindFullTcp(bool connects) {
  int port;
  const int listener = Listen(&port);
  auto* written = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
             -1, 0));
  CHECK_THAT(written != MAP_FAILED);
  const pid_t victim = ::fork();
  CHECK_THAT(victim >= 0);
  const bool child = victim == 0;
  const int fd = child == connects ? Connect(port) : Accept(listener);
  ::close(listener);
  const int room = child ? 65536 : 16384;
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, child ? SO_SNDBUF : SO_RCVBUF, &room,
                          sizeof room) == 0);
  WarmAs(fd, connects == child);
  std::vector<char> bytes(8192);
  if (child) {
    SetNonblock(fd, true);
    for (;;) {
      Pattern(1, *written, bytes.data(), bytes.size());
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), 0);
      if (n > 0) {
        *written += static_cast<std::uint64_t>(n);
        continue;
      }
      CHECK_THAT(errno == EAGAIN);
      pollfd full{fd, POLLOUT, 0};
      ::poll(&full, 1, -1);
    }
  }
  // Until TCP has some of it, and takes no more.
  const std::uint64_t warm = TcpBytes(fd);
  std::uint64_t before = warm;
  int still = 0;
  for (int i = 0; i < 1000 && still < 20; ++i) {
    ::poll(nullptr, 0, 5);
    const std::uint64_t now = TcpBytes(fd);
    still = now == before && now > warm + 4096 ? still + 1 : 0;
    before = now;
  }
  CHECK_THAT(::kill(victim, SIGKILL) == 0);
  CHECK_THAT(::waitpid(victim, nullptr, 0) == victim);
  std::uint64_t at = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n < 0) Fail("recv: %s", ErrorName(errno));
    if (n == 0) break;
    CHECK_THAT(IsPattern(1, at, bytes.data(), static_cast<std::size_t>(n)));
    at += static_cast<std::uint64_t>(n);
  }
  // (It may be killed before it has counted its last.)
  if (at < *written) {
    Fail("%llu written, %llu came", static_cast<unsigned long long>(*written),
         static_cast<unsigned long long>(at));
  }
  Log("done");
  ::munmap(written, 4096);
  ::close(fd);
}

Case kills_behind_full_tcp(
    "killed_behind_a_full_tcp", [](int) { KillBehindFullTcp(true); },
    [](int) { KillBehindFullTcp(false); },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
