// What a call says that has moved a part of what it was asked for, when its
// time is over, a handler has run, or there is more than a call moves.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// What was there when the time was over is the result.
Case part_of_all(
    "waitall_until_the_time_is_over",
    [](int fd) {
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int fd) {
      const timeval time{0, 40'000};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
      AwaitBytes(fd, 3);
      char text[16];
      const std::uint64_t start = NowMs();
      Result("recv", ::recv(fd, text, sizeof text, MSG_WAITALL));
      const std::uint64_t took = NowMs() - start;
      Log("not early %d, not late %d", took >= 39, took < 1000);
      Result("recv", ::recv(fd, text, sizeof text, MSG_WAITALL));
      Barrier();
    });

// Signals, of a handler that asks for SA_RESTART: but what has moved something
// is not begun anew.
struct Alarms {
  Alarms() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &action, nullptr);
    Each(50'000);
  }
  ~Alarms() { Each(0); }
  static void Each(int us) {
    const itimerval time{{0, us}, {0, us}};
    ::setitimer(ITIMER_REAL, &time, nullptr);
  }
};

Case restart_recv(
    "restart_of_a_part_received",
    [](int fd) {
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 3);
      Barrier();
      char text[16] = {};
      const Alarms alarms;
      Result("peek", ::recv(fd, text, sizeof text, MSG_PEEK | MSG_WAITALL));
      Result("recv", ::recv(fd, text, sizeof text, MSG_WAITALL));
      Log("%s", text);
      iovec two[2] = {{text, 2}, {text + 8, 4}};
      msghdr message{};
      message.msg_iov = two;
      message.msg_iovlen = 2;
      Barrier();
      Result("recvmsg", ::recvmsg(fd, &message, MSG_WAITALL));
      Barrier();
    });

// To a peer that does not read.
void SendsPart(int fd, ssize_t (*send)(int fd)) {
  const Alarms alarms;
  const ssize_t n = send(fd);
  Log("some went %d", n > 0 && n < (64 << 20));
  Barrier();
}

void DrainSome(int fd) {
  Barrier();
  int error;
  Log("rest %d", Drain(fd, &error) > 0);
}

Case restart_send("restart_of_a_part_sent", DrainSome, [](int fd) {
  SendsPart(fd, [](int to) {
    static const std::vector<char> big(64 << 20);
    return ::send(to, big.data(), big.size(), 0);
  });
});

Case restart_sendfile("restart_of_a_part_of_a_file", DrainSome, [](int fd) {
  SendsPart(fd, [](int to) {
    const int file = ::memfd_create("file", MFD_CLOEXEC);
    CHECK_THAT(::ftruncate(file, 64 << 20) == 0);
    off_t at = 0;
    const ssize_t n = ::sendfile(to, file, &at, 64 << 20);
    Log("offset is right %d", at == n);
    ::close(file);
    return n;
  });
});

// The next part of a call finds no room, or nothing there: as the first ones
// are its result it ends at once by a handler, which asks for SA_RESTART.
void EndsAtOnce(const char* what, int fd, long (*call)(int fd)) {
  static std::atomic<bool> over;
  over = false;
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
  const pid_t pid = ::getpid();
  const pid_t caller = ::gettid();
  const pthread_t thread = ::pthread_self();
  std::thread beside([=] {
    Barrier();  // something is there
    AwaitAsleep(pid, caller);
    ::pthread_kill(thread, SIGUSR1);
    // In the call again, or behind it.
    AwaitAsleep(pid, caller);
    Log("%s: %s", what, over ? "at once" : "asleep again");
    Barrier();
  });
  const long n = call(fd);
  over = true;
  beside.join();
  Log("%s: a part %d", what, n > 0);
}

void SeesSome(int fd) {
  pollfd one{fd, POLLIN, 0};
  CHECK_THAT(::poll(&one, 1, -1) == 1);
  Barrier();
  Barrier();
  int error;
  Log("rest %d", Drain(fd, &error) > 0);
}

Case handler_sendfile("handler_behind_a_part_of_a_file", SeesSome, [](int fd) {
  EndsAtOnce("sendfile", fd, [](int to) -> long {
    const int file = ::memfd_create("file", MFD_CLOEXEC);
    CHECK_THAT(::ftruncate(file, 64 << 20) == 0);
    const ssize_t n = ::sendfile(to, file, nullptr, 64 << 20);
    ::close(file);
    return n;
  });
});

template <std::size_t kCount>
struct Messages {
  explicit Messages(char* at, std::size_t length) {
    for (std::size_t i = 0; i < kCount; ++i) {
      parts[i] = {at, length};
      all[i] = {};
      all[i].msg_hdr.msg_iov = &parts[i];
      all[i].msg_hdr.msg_iovlen = 1;
    }
  }
  iovec parts[kCount];
  mmsghdr all[kCount];
};

Case handler_sendmmsg("handler_behind_messages_sent", SeesSome, [](int fd) {
  EndsAtOnce("sendmmsg", fd, [](int to) -> long {
    static char text[16384];
    static Messages<1000> messages(text, sizeof text);
    return ::sendmmsg(to, messages.all, 1000, 0);
  });
});

Case handler_recvmmsg(
    "handler_behind_messages_received",
    [](int fd) {
      SendAll(fd, "abcd", 4);
      Barrier();
      Barrier();
      SendAll(fd, "efgh", 4);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 4);
      EndsAtOnce("recvmmsg", fd, [](int from) -> long {
        static char text[4];
        static Messages<2> messages(text, sizeof text);
        return ::recvmmsg(from, messages.all, 2, 0, nullptr);
      });
      Barrier();
    });

// So does the socket's own time.
Case time_recvmmsg(
    "time_over_behind_messages_received",
    [](int fd) {
      SendAll(fd, "abcd", 4);
      Barrier();
    },
    [](int fd) {
      const timeval time{0, 40'000};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
      AwaitBytes(fd, 4);
      static char text[4];
      static Messages<2> messages(text, sizeof text);
      Result("recvmmsg", ::recvmmsg(fd, messages.all, 2, 0, nullptr));
      Result("recvmmsg", ::recvmmsg(fd, messages.all, 2, 0, nullptr));
      Barrier();
    });

// More than a call moves.
Case two_gigabytes(
    "more_than_a_call_moves",
    [](int fd) {
      char none;
      char* volatile nowhere = &none;  // FORTIFY compares lengths with objects
      std::uint64_t total = 0;
      for (ssize_t n = 1; n > 0; total += n) {
        n = ::recv(fd, nowhere, 1 << 20, MSG_TRUNC);
      }
      Log("%llu bytes", static_cast<unsigned long long>(total));
    },
    [](int fd) {
      constexpr std::size_t kLength = (std::size_t{2} << 30) + 12345;
      void* const zeros =
          ::mmap(nullptr, kLength, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      CHECK_THAT(zeros != MAP_FAILED);
      Result("write", ::write(fd, zeros, kLength));
      iovec parts[3] = {{zeros, 5}, {zeros, kLength}, {zeros, 7}};
      Result("writev", ::writev(fd, parts, 3));
      Log("as it was %d", parts[1].iov_len == kLength);
    },
    {.seconds = 120});

}  // namespace
