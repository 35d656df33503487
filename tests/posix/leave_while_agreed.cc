// An end that leaves between agreeing to a lane and having it: the peer has the
// lane already, writes to it, and is killed.  Every byte of a write that has
// returned arrives.
//
// Each step is held until the one before it has been seen.  The writer does not
// adopt its stream as long as a thread of its is in the kernel's recv; the
// background thread of the other end stands still from then on until that end
// has begun to leave.
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kPiece = 64;
constexpr int kBefore = 30;  // pieces, by TCP: both ends look for a lane
constexpr int kStaged = 10;  // pieces, in the ring
constexpr int kTries = 1000;
// How long it waits for the lane (WayBack::AwaitsLane).
constexpr std::uint64_t kAwaitMs = 20;

// What the three processes tell each other.
struct Told {
  std::atomic<int> number{-1};     // of the connection, where it is left
  std::atomic<bool> out{false};    // of recv
  std::atomic<bool> nudge{false};  // the writer is to come out of recv
  std::atomic<bool> staged{false};
  std::atomic<bool> leave{false};
  std::atomic<bool> left{false};
  std::atomic<std::uint64_t> took_ms{0};
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint64_t> came{0};
  std::atomic<int> in_vain{0};
};

template <class Condition>
void Await(Condition&& condition) {
  while (!condition()) ::usleep(50);
}

std::vector<std::string> Names(const std::string& path) {
  std::vector<std::string> names;
  DIR* const directory = ::opendir(path.c_str());
  CHECK_THAT(directory != nullptr);
  while (const dirent* one = ::readdir(directory)) {
    if (one->d_name[0] != '.') names.emplace_back(one->d_name);
  }
  ::closedir(directory);
  return names;
}

std::string Proc(pid_t process) {
  return "/proc/" + std::to_string(process) + "/";
}

// The background thread watches the connection: its stream is adopted.  (The
// program has no epoll set.)
bool Watched(pid_t process, int number) {
  for (const std::string& name : Names(Proc(process) + "fdinfo")) {
    std::ifstream info(Proc(process) + "fdinfo/" + name);
    for (std::string word; info >> word;) {
      int watched;
      if (word == "tfd:" && info >> watched && watched == number) return true;
    }
  }
  return false;
}

bool Dozes(pid_t process) {
  std::ifstream file(Proc(process) + "task/" + std::to_string(process) +
                     "/syscall");
  long number = -1;
  file >> number;
  return !file.fail() &&
         (number == SYS_nanosleep || number == SYS_clock_nanosleep);
}

std::vector<pid_t> StopOthers(pid_t process) {
  std::vector<pid_t> stopped;
  for (const std::string& name : Names(Proc(process) + "task")) {
    const pid_t thread = std::atoi(name.c_str());
    if (thread == process) continue;
    AwaitAsleep(process, thread);
    CHECK_THAT(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0);
    CHECK_THAT(::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0);
    CHECK_THAT(::waitpid(thread, nullptr, __WALL) == thread);
    stopped.push_back(thread);
  }
  return stopped;
}

[[noreturn]] void Write(int fd, Told* told) {
  std::atomic<pid_t> thread{0};
  std::thread receiver([&] {
    thread = ::gettid();
    char byte;
    CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
    told->out = true;
  });
  std::uint64_t at = 0;
  const auto write = [&] {
    char piece[kPiece];
    Pattern(1, at, piece, sizeof piece);
    SendAll(fd, piece, sizeof piece);
    told->written = at += sizeof piece;
  };
  Await([&] { return thread != 0; });
  AwaitAsleep(::getpid(), thread);
  for (int i = 0; i < kBefore; ++i) write();
  Await([&] { return told->out.load(); });
  int staged = 0;
  for (int i = 0; i < kTries && staged < kStaged; ++i) {
    const std::uint64_t before = TcpBytes(fd);
    write();
    staged = TcpBytes(fd) == before ? staged + 1 : 0;
    if (staged == 0) ::usleep(1000);  // the lane is on its way
  }
  told->staged = staged == kStaged;
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

[[noreturn]] void Leave(int fd, Told* told) {
  std::uint64_t at = 0;
  const auto take = [&] {
    char piece[kPiece];
    const ssize_t n = ::recv(fd, piece, sizeof piece, 0);
    if (n < 0) Fail("recv: %s", ErrorName(errno));
    CHECK_THAT(IsPattern(1, at, piece, static_cast<std::size_t>(n)));
    at += static_cast<std::uint64_t>(n);
    return n > 0;
  };
  while (at < kBefore * kPiece) take();
  told->number = fd;
  Await([&] { return told->nudge.load(); });
  SendAll(fd, "x", 1);
  // (No call that sleeps but the one that is waited for.)
  while (!told->leave) ::sched_yield();
  const std::uint64_t start = NowMs();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  told->took_ms = NowMs() - start;
  told->left = true;
  CHECK_THAT(::waitpid(child, nullptr, 0) == child);
  while (take()) {
  }
  told->came = at;
  ::_exit(0);
}

// The memory that both ends see.
Told* NewTold() {
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK_THAT(memory != MAP_FAILED);
  return new (memory) Told;
}

void GoOn(const std::vector<pid_t>& stopped) {
  for (const pid_t thread : stopped) {
    // (It may have left, and ended, without waiting.)
    if (::ptrace(PTRACE_DETACH, thread, nullptr, nullptr) != 0) {
      ::waitpid(thread, nullptr, __WALL);
    }
  }
}

// False: nothing was staged (a lane does not wait for ever until a thread comes
// out of the kernel), or the end that leaves has not waited long enough for its
// own thread that stood still.
bool Round(bool connects) {
  Told* const told = NewTold();
  int port;
  const int listener = Listen(&port);
  pid_t ends[2];
  for (const bool writes : {false, true}) {
    ends[writes] = ::fork();
    CHECK_THAT(ends[writes] >= 0);
    if (ends[writes] != 0) continue;
    const int fd = writes == connects ? Connect(port) : Accept(listener);
    ::close(listener);
    writes ? Write(fd, told) : Leave(fd, told);
  }
  ::close(listener);
  const auto [leaver, writer] = ends;
  Await([&] { return told->number >= 0 && Watched(leaver, told->number); });
  // (Then it has said so, too.)
  const std::vector<pid_t> stopped = StopOthers(leaver);
  told->nudge = true;
  CHECK_THAT(::waitpid(writer, nullptr, 0) == writer);
  told->leave = true;
  while (!told->left && !Dozes(leaver)) {
  }
  GoOn(stopped);
  int status;
  CHECK_THAT(::waitpid(leaver, &status, 0) == leaver);
  CHECK_THAT(status == 0);
  const std::uint64_t written = told->written;
  const std::uint64_t came = told->came;
  const std::uint64_t took_ms = told->took_ms;
  const bool staged = told->staged;
  ::munmap(told, 4096);
  if (came == written) return staged;
  if (took_ms >= kAwaitMs) return false;
  Fail("%llu written, %llu came, left in %llu ms",
       static_cast<unsigned long long>(written),
       static_cast<unsigned long long>(came),
       static_cast<unsigned long long>(took_ms));
}

bool InMemory() {
  const char* const warm = std::getenv("PAIR_WARM");
  const char* const lanes = std::getenv("RCSOCK_LANES");
  return warm != nullptr && std::strcmp(warm, "lane") == 0 &&
         (lanes == nullptr || std::strcmp(lanes, "rdma") != 0);
}

// `fd`: a connection that is no part of it, and has its lane.
void Rounds(int fd, bool connects) {
  IsClient() ? Call(fd, 2000) : Echo(fd, 2000);
  ::close(fd);
  if (InMemory()) {
    while (!Round(connects)) {
    }
  }
  Log("all came");
}

Case agreed(
    "killed_before_the_other_has_the_lane", [](int fd) { Rounds(fd, true); },
    [](int fd) { Rounds(fd, false); }, {.seconds = 60});

// --- The peer ends before this end has the lane that it waits for

// Sits in the kernel's recv, so that no lane comes, until it is killed.
[[noreturn]] void SendAndSit(int fd) {
  const std::vector<char> pieces(kBefore * kPiece);
  std::atomic<pid_t> thread{0};
  std::thread receiver([fd, &thread] {
    thread = ::gettid();
    char byte;
    ::recv(fd, &byte, 1, 0);
  });
  Await([&] { return thread != 0; });
  AwaitAsleep(::getpid(), thread);
  for (int i = 0; i < kBefore; ++i) SendAll(fd, pieces.data(), kPiece);
  for (;;) ::pause();
}

// What poll and epoll_wait tell of, a recv finds.
[[noreturn]] void TakeUntilTheEnd(int fd, Told* told) {
  char piece[kPiece];
  for (int i = 0; i < kBefore; ++i) RecvAll(fd, piece, sizeof piece);
  told->number = fd;
  Await([&] { return told->nudge.load(); });
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  for (int looks = 0;; ++looks) {
    if (looks == 20) told->left = true;
    pollfd one{fd, POLLIN, 0};
    const bool polled = ::poll(&one, 1, 0) != 0;
    const bool waited = ::epoll_wait(set, &event, 1, 1) != 0;
    const ssize_t n = ::recv(fd, piece, 1, MSG_DONTWAIT);
    if (n == 0) break;
    CHECK_THAT(n < 0 && errno == EAGAIN);
    if (polled || waited) ++told->in_vain;
  }
  ::_exit(0);
}

int EndsBeforeTheLane(bool connects) {
  Told* const told = NewTold();
  int port;
  const int listener = Listen(&port);
  pid_t ends[2];
  for (const bool ends_first : {false, true}) {
    ends[ends_first] = ::fork();
    CHECK_THAT(ends[ends_first] >= 0);
    if (ends[ends_first] != 0) continue;
    const int fd = ends_first == connects ? Connect(port) : Accept(listener);
    ::close(listener);
    if (ends_first) SendAndSit(fd);
    TakeUntilTheEnd(fd, told);
  }
  ::close(listener);
  const auto [stays, peer] = ends;
  Await([&] { return told->number >= 0 && Watched(stays, told->number); });
  const std::vector<pid_t> stopped = StopOthers(stays);
  CHECK_THAT(::kill(peer, SIGKILL) == 0);
  CHECK_THAT(::waitpid(peer, nullptr, 0) == peer);
  told->nudge = true;
  int status = 0;
  bool over = false;
  while (!told->left && !over) {
    over = ::waitpid(stays, &status, WNOHANG) == stays;
    ::usleep(100);
  }
  GoOn(stopped);
  if (!over) CHECK_THAT(::waitpid(stays, &status, 0) == stays);
  CHECK_THAT(status == 0);
  const int in_vain = told->in_vain;
  ::munmap(told, 4096);
  return in_vain;
}

void LogInVain(int fd, bool connects) {
  IsClient() ? Call(fd, 2000) : Echo(fd, 2000);
  ::close(fd);
  Log("told in vain: %d", InMemory() ? EndsBeforeTheLane(connects) : 0);
}

Case ends(
    "peer_ends_before_the_lane", [](int fd) { LogInVain(fd, true); },
    [](int fd) { LogInVain(fd, false); }, {.seconds = 60});

}  // namespace
