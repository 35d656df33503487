// Large blocking receives, into whose memory the peer's device may write while
// they wait: whatever ends them, the memory is the program's own behind them.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kLarge = 1 << 20;
using Bytes = std::vector<std::uint8_t>;

void SendPattern(int fd, std::uint64_t seed, std::size_t length) {
  Bytes bytes(length);
  Pattern(seed, 0, bytes.data(), length);
  SendAll(fd, bytes.data(), length);
}

// The other end asks for each answer when it is about to wait.
void Answers(int fd, int rounds, std::size_t length) {
  for (int i = 0; i < rounds; ++i) {
    char ask;
    RecvAll(fd, &ask, 1);
    SendPattern(fd, static_cast<std::uint64_t>(i), length);
  }
}

Case case_all(
    "in_place_all", [](int fd) { Answers(fd, 40, kLarge); },
    [](int fd) {
      Bytes to(kLarge + 100);
      for (int i = 0; i < 40; ++i) {
        std::fill(to.begin(), to.end(), 0xee);
        SendAll(fd, "?", 1);
        const std::size_t shift = static_cast<std::size_t>(i) % 50;
        CHECK_THAT(::recv(fd, to.data() + shift, kLarge, MSG_WAITALL) ==
                   static_cast<ssize_t>(kLarge));
        CHECK_THAT(IsPattern(static_cast<std::uint64_t>(i), 0,
                             to.data() + shift, kLarge));
        for (std::size_t k = kLarge + shift; k < to.size(); ++k) {
          CHECK_THAT(to[k] == 0xee);
        }
      }
      Log("all there");
    });

Case case_some(
    "in_place_some", [](int fd) { Answers(fd, 40, kLarge); },
    [](int fd) {
      Bytes to(2 * kLarge);
      for (int i = 0; i < 40; ++i) {
        SendAll(fd, "?", 1);
        std::size_t got = 0;
        while (got < kLarge) {
          // More room than will come.
          const ssize_t n =
              i % 2 == 0 ? ::recv(fd, to.data() + got, to.size() - got, 0)
                         : ::read(fd, to.data() + got, to.size() - got);
          CHECK_THAT(n > 0);
          // What lies behind is the program's.
          const std::size_t end = got + static_cast<std::size_t>(n);
          CHECK_THAT(IsPattern(static_cast<std::uint64_t>(i), got,
                               to.data() + got, end - got));
          std::memset(to.data() + end, 0xee, to.size() - end);
          got = end;
        }
        CHECK_THAT(got == kLarge);
      }
      Log("all there");
    });

// Long enough for RCSOCK_RECV_IN_PLACE=any.
Case case_any(
    "in_place_any", [](int fd) { Answers(fd, 6, 5 * kLarge); },
    [](int fd) {
      Bytes to(6 * kLarge);
      for (int i = 0; i < 6; ++i) {
        SendAll(fd, "?", 1);
        std::size_t got = 0;
        while (got < 5 * kLarge) {
          const bool all = i % 2 == 0;
          const std::size_t room = all ? 5 * kLarge : to.size() - got;
          const ssize_t n =
              ::recv(fd, to.data() + got, room, all ? MSG_WAITALL : 0);
          CHECK_THAT(n > 0);
          got += static_cast<std::size_t>(n);
        }
        CHECK_THAT(got == 5 * kLarge);
        CHECK_THAT(IsPattern(static_cast<std::uint64_t>(i), 0, to.data(), got));
        std::fill(to.begin(), to.end(), 0xee);
      }
      Log("all there");
    });

// A stream, of which a call takes what it likes, and vectors.
Case case_stream(
    "in_place_stream", [](int fd) { SendPattern(fd, 9, 24 * kLarge); },
    [](int fd) {
      Bytes to(3 * kLarge);
      std::size_t got = 0;
      Random random{Seed()};
      while (got < 24 * kLarge) {
        const std::size_t left = 24 * kLarge - got;
        const std::size_t want =
            std::min<std::size_t>(left, 1 + random.Below(to.size()));
        const std::size_t first = random.Below(want + 1);
        iovec iov[2] = {{to.data(), first}, {to.data() + first, want - first}};
        msghdr message{};
        message.msg_iov = iov;
        message.msg_iovlen = 2;
        const ssize_t n =
            ::recvmsg(fd, &message, random.Below(2) == 0 ? MSG_WAITALL : 0);
        CHECK_THAT(n > 0);
        CHECK_THAT(IsPattern(9, got, to.data(), static_cast<std::size_t>(n)));
        got += static_cast<std::size_t>(n);
        if (random.Below(8) == 0) {
          char byte;
          CHECK_THAT(left == static_cast<std::size_t>(n) ||
                     ::recv(fd, &byte, 1, MSG_PEEK) == 1);
        }
      }
      Log("all there");
    });

// What follows comes while the memory is used for something else.
void Follow(int fd, Bytes* own) {
  std::memset(own->data(), 0x5a, own->size());
  SendAll(fd, "!", 1);
  Bytes to(kLarge);
  RecvAll(fd, to.data(), to.size());
  CHECK_THAT(IsPattern(3, 0, to.data(), to.size()));
  for (const std::uint8_t byte : *own) CHECK_THAT(byte == 0x5a);
  Log("the memory is the program's");
}
void Followed(int fd, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    char byte;
    RecvAll(fd, &byte, 1);
    SendPattern(fd, 3, kLarge);
  }
}

Case case_times(
    "in_place_times", [](int fd) { Followed(fd, 8); },
    [](int fd) {
      Bytes own(kLarge);
      timeval limit{0, 3000};
      timeval none{0, 0};
      for (int i = 0; i < 8; ++i) {
        CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit,
                                sizeof limit) == 0);
        const ssize_t n =
            ::recv(fd, own.data(), own.size(), i % 2 == 0 ? MSG_WAITALL : 0);
        if (i == 0) Result("recv", n);
        CHECK_THAT(n == -1 && errno == EAGAIN);
        CHECK_THAT(
            ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) == 0);
        Follow(fd, &own);
      }
    });

void Handle(int number, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  CHECK_THAT(::sigaction(number, &action, nullptr) == 0);
}

// Interrupts this thread when it sleeps.
class Interrupts {
 public:
  explicit Interrupts(int number)
      : thread_([number, main = ::pthread_self(), id = ::gettid()] {
          AwaitAsleep(::getpid(), id);
          ::usleep(2000);
          ::pthread_kill(main, number);
        }) {}
  ~Interrupts() { thread_.join(); }

 private:
  std::thread thread_;
};

Case case_interrupted(
    "in_place_interrupted", [](int fd) { Followed(fd, 4); },
    [](int fd) {
      Handle(
          SIGUSR1, [](int) {}, 0);
      Bytes own(kLarge);
      for (int i = 0; i < 4; ++i) {
        {
          const Interrupts interrupts(SIGUSR1);
          Result("recv", ::recv(fd, own.data(), own.size(),
                                i % 2 == 0 ? MSG_WAITALL : 0));
        }
        Follow(fd, &own);
      }
    });

sigjmp_buf back;

Case case_jumps(
    "in_place_jumps", [](int fd) { Followed(fd, 4); },
    [](int fd) {
      Handle(
          SIGUSR1, [](int) { ::siglongjmp(back, 1); }, 0);
      static Bytes own(kLarge);
      static std::atomic<int> round;
      for (round = 0; round < 4; ++round) {
        {
          const Interrupts interrupts(SIGUSR1);
          if (sigsetjmp(back, 1) == 0) {
            ::recv(fd, own.data(), own.size(), MSG_WAITALL);
            Fail("it returned");
          }
        }
        Follow(fd, &own);
      }
    });

Case case_restarts(
    "in_place_restarts", [](int fd) { Answers(fd, 4, kLarge); },
    [](int fd) {
      static int asked = -1;
      Handle(
          SIGUSR1,
          [](int) {
            if (::write(asked, "?", 1) != 1) Fail("write");
          },
          SA_RESTART);
      asked = fd;
      Bytes to(kLarge);
      for (std::uint64_t i = 0; i < 4; ++i) {
        const Interrupts interrupts(SIGUSR1);
        CHECK_THAT(::recv(fd, to.data(), to.size(), MSG_WAITALL) ==
                   static_cast<ssize_t>(to.size()));
        CHECK_THAT(IsPattern(i, 0, to.data(), to.size()));
      }
      Log("all there");
    });

struct Call {
  int fd;
  Bytes own = Bytes(kLarge);
};

Case case_cancelled(
    "in_place_cancelled", [](int fd) { Followed(fd, 3); },
    [](int fd) {
      Call call{fd};
      for (int i = 0; i < 3; ++i) {
        pthread_t thread;
        CHECK_THAT(::pthread_create(
                       &thread, nullptr,
                       [](void* argument) -> void* {
                         auto* mine = static_cast<Call*>(argument);
                         ::recv(mine->fd, mine->own.data(), mine->own.size(),
                                MSG_WAITALL);
                         return nullptr;
                       },
                       &call) == 0);
        ::usleep(10'000);
        CHECK_THAT(::pthread_cancel(thread) == 0);
        void* result = nullptr;
        CHECK_THAT(::pthread_join(thread, &result) == 0);
        Log("%s", result == PTHREAD_CANCELED ? "cancelled" : "returned");
        Follow(fd, &call.own);
      }
    });

Case case_shut(
    "in_place_shut", [](int) { Barrier(); },
    [](int fd) {
      Bytes own(kLarge);
      std::thread other([fd, id = ::gettid()] {
        AwaitAsleep(::getpid(), id);
        ::shutdown(fd, SHUT_RD);
      });
      Result("recv", ::recv(fd, own.data(), own.size(), MSG_WAITALL));
      other.join();
      Barrier();
    });

// The child sees what lay in the memory; the parent's call goes on.
Case case_forks(
    "in_place_forks",
    [](int fd) {
      Barrier();
      SendPattern(fd, 4, kLarge);
    },
    [](int fd) {
      Call call{fd};
      std::memset(call.own.data(), 0x11, call.own.size());
      std::thread thread([&] {
        CHECK_THAT(::recv(fd, call.own.data(), call.own.size(), MSG_WAITALL) ==
                   static_cast<ssize_t>(kLarge));
      });
      ::usleep(10'000);
      const pid_t child = ::fork();
      if (child == 0) {
        for (const std::uint8_t byte : call.own) {
          if (byte != 0x11) ::_exit(1);
        }
        ::_exit(0);
      }
      LogChild(child);
      Barrier();
      thread.join();
      CHECK_THAT(IsPattern(4, 0, call.own.data(), kLarge));
      Log("all there");
    });

// Two calls at once: each byte comes once.
Case case_shared(
    "in_place_shared", [](int fd) { SendPattern(fd, 5, 16 * kLarge); },
    [](int fd) {
      std::atomic<std::size_t> sum{0};
      std::atomic<std::size_t> got{0};
      const auto take = [&] {
        Bytes to(kLarge);
        for (;;) {
          const ssize_t n = ::recv(fd, to.data(), to.size(), 0);
          CHECK_THAT(n >= 0);
          if (n == 0) return;
          std::size_t mine = 0;
          for (ssize_t i = 0; i < n; ++i) mine += to[static_cast<unsigned>(i)];
          sum += mine;
          got += static_cast<std::size_t>(n);
        }
      };
      std::thread one(take);
      std::thread two(take);
      one.join();
      two.join();
      Bytes all(16 * kLarge);
      Pattern(5, 0, all.data(), all.size());
      std::size_t expected = 0;
      for (const std::uint8_t byte : all) expected += byte;
      CHECK_THAT(got == all.size());
      CHECK_THAT(sum == expected);
      Log("each once");
    });

// The end comes amid a call.
Case case_ends(
    "in_place_ends",
    [](int fd) {
      char ask;
      RecvAll(fd, &ask, 1);
      SendPattern(fd, 6, kLarge / 2);
    },
    [](int fd) {
      Bytes to(kLarge);
      SendAll(fd, "?", 1);
      const long n =
          Result("recv", ::recv(fd, to.data(), to.size(), MSG_WAITALL));
      CHECK_THAT(IsPattern(6, 0, to.data(), static_cast<std::size_t>(n)));
      Result("recv", ::recv(fd, to.data(), to.size(), MSG_WAITALL));
    });

}  // namespace
