// Signals that come between two instructions: the thread is traced by itself
// (the trap flag), from the kernel's answer to its wait on.
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "tests/posix/pair.h"
#include "tests/posix/stepping.h"

namespace {

using namespace pair;
using namespace steps;

// One round.
std::atomic<int> waiting{0};    // threads that are about to sleep in the kernel
std::atomic<bool> told{false};  // one of them has come back
std::atomic<bool> settled{false};  // ... and goes no further
std::atomic<bool> beyond{false};   // ... before the signal was due
int due = 0;                       // its instruction that the signal comes at

thread_local volatile bool sleeps = false;  // by the next instruction
thread_local volatile bool first = false;   // it is the one
thread_local volatile int done = 0;         // instructions

// A wait that may sleep is what comes next.
bool Sleeps(const greg_t* regs) {
  constexpr unsigned char kSyscall[] = {0x0f, 0x05};
  if (std::memcmp(reinterpret_cast<const void*>(regs[REG_RIP]), kSyscall,
                  sizeof kSyscall) != 0) {
    return false;
  }
  if (regs[REG_RAX] == SYS_epoll_pwait2) {
    const auto* limit = reinterpret_cast<const timespec*>(regs[REG_R10]);
    return limit == nullptr || limit->tv_sec != 0 || limit->tv_nsec != 0;
  }
  return (regs[REG_RAX] == SYS_epoll_wait ||
          regs[REG_RAX] == SYS_epoll_pwait) &&
         static_cast<int>(regs[REG_R10]) != 0;
}

void OnTrap(int, siginfo_t*, void* context) {
  KeepTraps(context);
  greg_t* regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const bool slept = sleeps;
  sleeps = Sleeps(regs);
  if (!first) {
    if (sleeps) ++waiting;
    if (!slept) return;
    if (told.exchange(true)) {
      regs[REG_EFL] &= ~kTrap;
      return;
    }
    first = true;
  }
  if (done == due) {
    regs[REG_EFL] &= ~kTrap;
    // Blocked until this handler returns.
    Raw(SYS_tgkill, Raw(SYS_getpid, 0, 0, 0, 0), Raw(SYS_gettid, 0, 0, 0, 0),
        SIGUSR1, 0);
  } else if (sleeps) {
    regs[REG_EFL] &= ~kTrap;
    beyond = settled = true;
  }
  done = done + 1;
}

thread_local sigjmp_buf out;
thread_local volatile bool waits = false;

// Whether the wait has ended otherwise than it should.
bool Missed(int set) {
  sleeps = false;
  first = false;
  done = 0;
  volatile int n = 0;
  volatile bool jumped = true;
  epoll_event event{};
  if (::sigsetjmp(out, 1) == 0) {
    waits = true;
    BeginSteps();
    n = ::epoll_wait(set, &event, 1, 5000);
    EndSteps();
    waits = false;
    jumped = false;
    if (first) beyond = true;
  }
  if (first) settled = true;
  return !jumped && n != 1;
}

// Two threads wait in a set.  The first stream comes into it, and whoever is
// told of that jumps out of its wait, an instruction later in each round.  The
// message that comes then is the other one's.
Case jumps_at_each_step(
    "siglongjmp_at_each_step",
    [](int fd) {
      const char* warm = std::getenv("PAIR_WARM");
      const bool lane = warm != nullptr && std::strcmp(warm, "lane") == 0;
      struct sigaction action {};
      action.sa_handler = [](int) {
        if (!waits) return;
        waits = false;
        ::siglongjmp(out, 1);
      };
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      HandleTraps(&OnTrap);
      std::atomic<int> missed{0};
      // What comes behind the kernel's answer, unless it is less: the looks
      // before the next sleep are many more.
      constexpr int kMost = 2000;
      due = 0;
      for (beyond = false; !beyond && missed == 0 && due < kMost;) {
        waiting = 0;
        told = settled = false;
        const int set = ::epoll_create1(0);
        std::thread threads[2];
        for (auto& thread : threads) {
          thread = std::thread([&] { missed += Missed(set) ? 1 : 0; });
        }
        while (waiting < 2) std::this_thread::yield();
        epoll_event event{};
        event.events = EPOLLIN;
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        // (A stream that is the kernel's wakes nobody yet.)
        while (lane && !settled) std::this_thread::yield();
        Tell(1);
        for (auto& thread : threads) thread.join();
        char byte;
        RecvAll(fd, &byte, 1);
        SendAll(fd, &byte, 1);
        ::close(set);
        due += 1 + due / 300;
      }
      Tell(0);
      Log("%s", missed != 0 ? "one slept on" : "all were told");
    },
    [](int fd) {
      while (Hear() == 1) {
        char byte = 'x';
        SendAll(fd, &byte, 1);
        RecvAll(fd, &byte, 1);
      }
    },
    {.seconds = 120});

// --- A registration that is told of once, or by edges

constexpr auto kEdges = static_cast<std::uint32_t>(EPOLLET);

void Arm(int set, int fd, std::uint32_t events, std::uint32_t data,
         bool anew = false) {
  epoll_event event{};
  event.events = events;
  event.data.u32 = data;
  CHECK_THAT(
      ::epoll_ctl(set, anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0);
}

// There is always something to read.  Of two threads, one waits, and the other
// arms the registration anew; one of them (`steps_arm`: the latter) stands an
// instruction later in each round while the other goes on.  What is told is the
// first arming, and the second one is told after it; or the second, and nothing
// is.  (A lane may tell one edge more.)
void ArmedAtEachStep(int fd, std::uint32_t once, std::uint32_t events,
                     bool anew, bool steps_arm) {
  const int set = ::epoll_create1(0);
  epoll_event event{};
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  HandleTraps(&Standing::OnTrap);
  constexpr int kMost = 4000;
  int wrong = 0;
  bool found[3] = {};
  Standing::due = 0;
  for (bool within = true; within && Standing::due < kMost;
       Standing::due += 1 + Standing::due / 40) {
    Arm(set, fd, EPOLLIN | once, 1);
    Standing::stands = Standing::goes = false;
    std::atomic<bool> over{false};
    epoll_event first_told{};
    int n = 0;
    const auto wait = [&] { n = ::epoll_wait(set, &first_told, 1, 5000); };
    const auto arm = [&] {
      if (anew) CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) == 0);
      Arm(set, fd, events | once, 2, anew);
    };
    std::thread stepped([&] {
      Standing::Run([&] { steps_arm ? arm() : wait(); });
      over = true;
    });
    while (!Standing::stands && !over) std::this_thread::yield();
    within = Standing::stands;
    std::atomic<bool> other_over{false};
    std::thread other([&] {
      steps_arm ? wait() : arm();
      other_over = true;
    });
    // (It may want a latch that the one that stands has.)
    for (int i = 0; i < 20 && !other_over; ++i) ::usleep(100);
    Standing::goes = true;
    stepped.join();
    other.join();
    epoll_event second{};
    const int more = ::epoll_wait(set, &second, 1, 0);
    // All that is asked for holds: what is told first is one arming's, and all
    // of the second one is told, then or behind it.
    std::uint32_t all = more == 1 ? second.events : 0;
    const std::uint32_t data = first_told.data.u32;
    if (data == 2) all |= first_told.events;
    const bool right = n == 1 &&
                       first_told.events == (data == 1 ? EPOLLIN : events) &&
                       all == events && (more == 0 || second.data.u32 == 2) &&
                       (data == 1 || once == kEdges || more == 0);
    if (!right && ++wrong == 1) {
      std::fprintf(stderr, "step %d: %d of %u, %x, then %d of %u, %x\n",
                   Standing::due, n, data, first_told.events, more,
                   second.data.u32, second.events);
    }
    if (right) found[data] = true;
  }
  Log("wrong: %d, found both: %d", wrong, found[1] && found[2]);
  ::close(set);
}

Case armed(
    "armed_at_each_step",
    [](int fd) {
      Barrier();
      for (const std::uint32_t once :
           {std::uint32_t{EPOLLONESHOT}, kEdges, EPOLLONESHOT | kEdges}) {
        for (const int how : {0, 1, 2, 3}) {
          const bool anew = how % 2 != 0;
          const bool steps_arm = how / 2 != 0;
          for (const std::uint32_t events :
               {std::uint32_t{EPOLLIN}, std::uint32_t{EPOLLIN | EPOLLRDNORM},
                std::uint32_t{EPOLLIN | EPOLLOUT}, std::uint32_t{EPOLLOUT}}) {
            ArmedAtEachStep(fd, once, events, anew, steps_arm);
          }
        }
      }
      Barrier();
    },
    [](int fd) {
      SendAll(fd, "a", 1);
      Barrier();
      Barrier();
    },
    {.seconds = 240});

// A thread that has been told of a message reads it, and arms the registration
// anew: one that is told of once, or (`anew`) one by level, which it has
// deleted before.  Meanwhile another thread waits, and stands an instruction
// later in each round.  There is nothing to tell it.
void ReadAndArmedAtEachStep(int fd, bool anew) {
  const std::uint32_t events =
      EPOLLIN | (anew ? 0u : std::uint32_t{EPOLLONESHOT});
  const int set = ::epoll_create1(0);
  Arm(set, fd, events, 1, true);
  HandleTraps(&Standing::OnTrap);
  constexpr int kMost = 4000;
  int in_vain = 0;
  Standing::due = 0;
  for (bool within = true; within && Standing::due < kMost;
       Standing::due += 1 + Standing::due / 40) {
    SendAll(fd, "n", 1);
    epoll_event report{};
    CHECK_THAT(::epoll_wait(set, &report, 1, 5000) == 1);
    if (anew) CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) == 0);
    Standing::stands = Standing::goes = false;
    std::atomic<bool> over{false};
    int n = 0;
    std::thread stepped([&] {
      Standing::Run([&] {
        epoll_event event{};
        n = ::epoll_wait(set, &event, 1, 5);
      });
      over = true;
    });
    while (!Standing::stands && !over) std::this_thread::yield();
    within = Standing::stands;
    std::atomic<bool> other_over{false};
    std::thread other([&] {
      char byte;
      RecvAll(fd, &byte, 1);
      Arm(set, fd, events, 1, anew);
      other_over = true;
    });
    // (It may want a latch that the one that stands has.)
    for (int i = 0; i < 20 && !other_over; ++i) ::usleep(100);
    Standing::goes = true;
    stepped.join();
    other.join();
    if (n != 0) {
      if (++in_vain == 1) std::fprintf(stderr, "step %d\n", Standing::due);
      if (!anew) Arm(set, fd, events, 1);
    }
  }
  Log("in vain: %d", in_vain);
  ::close(set);
}

Case read_at_step(
    "read_and_armed_at_each_step",
    [](int fd) {
      for (const bool anew : {false, true}) ReadAndArmedAtEachStep(fd, anew);
      SendAll(fd, "e", 1);
    },
    [](int fd) {
      for (char what = 'n'; what != 'e';) {
        RecvAll(fd, &what, 1);
        if (what == 'n') SendAll(fd, "x", 1);
      }
    },
    {.seconds = 240});

}  // namespace
