// A fork while another thread stands at one of its instructions: what the child
// inherits of that thread's call is whole.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/stepping.h"

namespace {

using namespace pair;
using namespace steps;

// Registrations that report room, which a set finds on its ready list alone.
constexpr std::uint32_t kEvents = EPOLLIN | EPOLLOUT;
constexpr int kStreams = 3;

void Arm(int set, int fd, std::uint32_t events, bool anew) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  CHECK_THAT(
      ::epoll_ctl(set, anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0);
}

int SetOf(const std::vector<int>& streams) {
  const int set = ::epoll_create1(0);
  CHECK_THAT(set >= 0);
  for (const int fd : streams) Arm(set, fd, kEvents, true);
  return set;
}

// Whether a wait reports each of the streams, and only these.
bool TellsAll(int set, const std::vector<int>& streams) {
  std::vector<int> told;
  for (int tries = 0; tries < 8 && told.size() < streams.size(); ++tries) {
    std::array<epoll_event, 8> events;
    const int n = ::epoll_wait(set, events.data(), 8, 2000);
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (std::find(streams.begin(), streams.end(), fd) == streams.end()) {
        return false;
      }
      if (std::find(told.begin(), told.end(), fd) == told.end()) {
        told.push_back(fd);
      }
    }
  }
  return told.size() == streams.size();
}

// Whether waits in which nothing comes sleep, and report nothing.  A thread
// that loses its CPU may not come to sleep within one of them.
bool Sleeps(int set) {
  rusage before{};
  rusage after{};
  CHECK_THAT(::getrusage(RUSAGE_SELF, &before) == 0);
  for (int tries = 0; tries < 20; ++tries) {
    epoll_event event;
    if (::epoll_wait(set, &event, 1, 3) != 0) return false;
    CHECK_THAT(::getrusage(RUSAGE_SELF, &after) == 0);
    if (after.ru_nvcsw > before.ru_nvcsw) return true;
  }
  return false;
}

// The status of a child that closes what it has inherited, and has a stream of
// its own: 0, or what is wrong.  The stream is in as many sets as the parent
// had registrations.  So the sets and the registrations may be in the place of
// those of the parent.
int ChildFinds(int inherited, const std::vector<int>& streams, int port) {
  for (const int fd : streams) ::close(fd);
  ::close(inherited);
  const std::vector<int> own = {Connect(port)};
  std::vector<int> sets;
  sets.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) sets.push_back(SetOf(own));
  WarmAs(own[0], true);
  for (const int set : sets) {
    if (!TellsAll(set, own)) return 1;
  }
  Arm(sets[0], own[0], EPOLLIN, false);
  return Sleeps(sets[0]) ? 0 : 2;
}

int amid = 0;  // forks, so far, while the thread stood

// Forks while another thread stands within `call`.  Returns whether the child
// finds all; *stood: the thread has come to that instruction.
template <class Call>
bool ForkAmid(const Call& call, const std::function<int()>& child_finds,
              bool* stood) {
  Standing::stands = Standing::goes = false;
  std::atomic<bool> over{false};
  std::thread stepped([&] {
    Standing::Run(call);
    over = true;
  });
  while (!Standing::stands && !over) std::this_thread::yield();
  *stood = Standing::stands;
  std::atomic<bool> forked{false};
  pid_t child = -1;
  std::thread forks([&] {
    child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::_exit(child_finds());
    }
    forked = true;
  });
  // (It may want a latch that the one that stands has.)
  for (int i = 0; i < 50 && !forked; ++i) ::usleep(100);
  if (forked) ++amid;
  Standing::goes = true;
  stepped.join();
  forks.join();
  int status = -1;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  if (status != 0) std::fprintf(stderr, "child: %x\n", status);
  return status == 0;
}

void Serve(int fd) {
  const int listener = ListenAndTell();
  std::thread accepts([&] {
    for (;;) {
      const int one = ::accept(listener, nullptr, nullptr);
      if (one < 0) return;
      std::thread([one] {
        WarmAs(one, false);
        int error;
        Drain(one, &error);
        ::close(one);
      }).detach();
    }
  });
  char byte;
  RecvAll(fd, &byte, 1);
  ::shutdown(listener, SHUT_RDWR);
  accepts.join();
}

Case amid_wait(
    "fork_amid_a_wait_at_each_step", [](int fd) { Serve(fd); },
    [](int fd) {
      const int port = HearPort();
      std::vector<int> streams;
      for (int i = 0; i < kStreams; ++i) {
        streams.push_back(Connect(port));
        WarmAs(streams.back(), true);
      }
      const int set = SetOf(streams);
      HandleTraps(&Standing::OnTrap);
      constexpr int kMost = 2000;
      int wrong = 0;
      Standing::due = 0;
      for (bool stood = true; stood && wrong < 3 && Standing::due < kMost;
           Standing::due += 1 + Standing::due / 500) {
        const auto wait = [&] {
          std::array<epoll_event, 8> events;
          ::epoll_wait(set, events.data(), 8, 0);
        };
        const auto child = [&] { return ChildFinds(set, streams, port); };
        if (!ForkAmid(wait, child, &stood)) {
          ++wrong;
          std::fprintf(stderr, "step %d\n", Standing::due);
        }
      }
      std::fprintf(stderr, "%d steps, %d forks amid\n", Standing::due, amid);
      Log("wrong: %d, told: %d", wrong, TellsAll(set, streams));
      SendAll(fd, "e", 1);
    },
    {.seconds = 240});

}  // namespace
