// The first searches of a process.  A thread that sends and receives without
// waiting does not sleep for them: not for the conductor's start, nor for the
// kernel that makes room for its descriptors, nor for a look at the program's
// code.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>

#include "tests/posix/hidden_syscall.h"
#include "tests/posix/pair.h"
#include "tests/posix/passed.h"

namespace {

using namespace pair;

constexpr int kTrips = 24;  // a search begins after eight calls

// Both ends of a connection are here.
struct Both {
  Both() {
    int port = 0;
    const int listener = Listen(&port);
    one = Connect(port);
    other = Accept(listener);
    ::close(listener);
  }
  ~Both() {
    ::close(one);
    ::close(other);
  }
  int one;
  int other;
};

// Returns how often this thread has slept.
long Sleeps() {
  rusage used{};
  CHECK_THAT(::getrusage(RUSAGE_THREAD, &used) == 0);
  return used.ru_nvcsw;
}

// Round trips that wait for nobody.  Returns how often this thread has slept
// meanwhile.
long Talk(const Both& both) {
  const long before = Sleeps();
  for (int i = 0; i < kTrips; ++i) {
    char byte = 'x';
    CHECK_THAT(::send(both.one, &byte, 1, MSG_DONTWAIT) == 1);
    while (::recv(both.other, &byte, 1, MSG_DONTWAIT) != 1) {
      CHECK_THAT(errno == EAGAIN);
    }
  }
  return Sleeps() - before;
}

Case beside_threads(
    "first_search_beside_threads",
    [](int fd) {
      std::atomic<bool> over{false};
      std::thread beside([&over] {
        while (!over) ::usleep(1000);
      });
      {
        const Both both;
        Log("slept %ld times", Talk(both));
      }
      over = true;
      beside.join();
      Warm(fd);
    },
    [](int fd) { Warm(fd); }, {.warm = false});

// Returns the connection as it comes from a program without rcsock.
int PassedByAnother(int fd) {
  int ends[2];
  CHECK_THAT(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  Message message;
  message.Put({fd});
  CHECK_THAT(PastCall(SYS_sendmsg, ends[0],
                      reinterpret_cast<long>(&message.header), 0, 0) == 1);
  const int passed = Take(ends[1]);
  ::close(ends[0]);
  ::close(ends[1]);
  ::close(fd);
  return passed;
}

// A connection that others may hold has the conductor look for them first.
Case passed_beside_threads(
    "first_search_of_a_passed_one",
    [](int fd) {
      std::atomic<bool> over{false};
      std::thread beside([&over] {
        while (!over) ::usleep(1000);
      });
      {
        Both both;
        both.one = PassedByAnother(both.one);
        Log("slept %ld times", Talk(both));
      }
      over = true;
      beside.join();
      Warm(fd);
    },
    [](int fd) { Warm(fd); }, {.warm = false});

// The look reads 128 MiB of code, which takes some 50 ms.
Case during_the_look(
    "later_searches_during_the_look",
    [](int fd) {
      constexpr std::size_t kCode = 128 << 20;
      void* const code = ::mmap(nullptr, kCode, PROT_READ | PROT_EXEC,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK_THAT(code != MAP_FAILED);
      {
        const Both first;
        const Both others[10];
        Talk(first);
        long slept = 0;
        for (const Both& other : others) slept += Talk(other);
        Log("slept %ld times", slept);
      }
      Warm(fd);
    },
    [](int fd) { Warm(fd); }, {.warm = false});

}  // namespace
