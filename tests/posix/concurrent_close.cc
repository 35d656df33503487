// A number that is closed while calls of other threads sleep on its connection:
// they keep it, whatever takes the number, and it ends when the last of them
// returns.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/posix/bulk.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

bool Asleep(int thread) {
  char name[64];
  std::snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
  FILE* file = std::fopen(name, "re");
  if (file == nullptr) return false;
  char line[512] = {};
  const bool read = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  const char* state = read ? std::strrchr(line, ')') : nullptr;
  return state != nullptr && state[2] == 'S';
}

// `thread`: its number, once it has begun.  (Who spins runs; a wait for a latch
// is over soon.)
void AwaitSleep(const std::atomic<int>& thread) {
  for (int looks = 0; looks < 8;) {
    ::poll(nullptr, 0, 1);
    looks = thread != 0 && Asleep(thread) ? looks + 1 : 0;
  }
}

int OwnNumber() { return static_cast<int>(::syscall(SYS_gettid)); }

// A thread in a call that sleeps.
class Caller {
 public:
  explicit Caller(std::function<void()> call)
      : thread_([this, call = std::move(call)] {
          number_ = OwnNumber();
          call();
        }) {
    AwaitSleep(number_);
  }
  ~Caller() {
    if (thread_.joinable()) thread_.join();
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  pthread_t handle() { return thread_.native_handle(); }
  void Join() { thread_.join(); }

 private:
  std::atomic<int> number_{0};
  std::thread thread_;
};

// Not to be inlined: its name is in the suppression below.
[[gnu::noinline]] void CloseUnder(int fd) {
  const int result = ::close(fd);
  CHECK_THAT(result == 0);
}

// The other end has not gone.
void LogStands(int fd) {
  pollfd one{fd, POLLIN | POLLRDHUP, 0};
  Log("stands: %d", ::poll(&one, 1, 60) == 0);
}

void Recv(int fd, std::size_t length, int flags) {
  char text[64] = {};
  const ssize_t n = ::recv(fd, text, length, flags);
  Log("recv: %zd %s %s", n, n < 0 ? ErrorName(errno) : "", text);
}

// The peer: waits for the close, sees that nothing comes of it, makes the call
// end, and then sees the end.
void Peer(int fd, const std::function<void(int)>& act) {
  Barrier();
  LogStands(fd);
  act(fd);
  LogDrain(fd);
  Barrier();
}

Case data_behind_close(
    "recv_goes_on",
    [](int fd) { Peer(fd, [](int to) { SendAll(to, "data", 4); }); },
    [](int fd) {
      Caller caller([fd] { Recv(fd, 4, 0); });
      CloseUnder(fd);
      Barrier();
      caller.Join();
      Recv(fd, 4, 0);
      Barrier();
    });

// ... whatever the number is by then.
Case number_is_taken(
    "number_is_taken",
    [](int fd) { Peer(fd, [](int to) { SendAll(to, "data", 4); }); },
    [](int fd) {
      Caller caller([fd] { Recv(fd, 4, 0); });
      CloseUnder(fd);
      const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      Log("taken: %d", other == fd);
      Barrier();
      caller.Join();
      Result("write", ::write(fd, "x", 1));
      CHECK_THAT(::close(other) == 0);
      Barrier();
    });

Case replaced(
    "replaced_by_dup2",
    [](int fd) { Peer(fd, [](int to) { SendAll(to, "data", 4); }); },
    [](int fd) {
      const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      Caller caller([fd] { Recv(fd, 4, 0); });
      CHECK_THAT(::dup2(other, fd) == fd);
      Barrier();
      caller.Join();
      Result("write", ::write(fd, "x", 1));
      Barrier();
    });

// The last of several numbers goes.
Case copies(
    "copies_closed",
    [](int fd) { Peer(fd, [](int to) { SendAll(to, "data", 4); }); },
    [](int fd) {
      const int copy = ::dup(fd);
      Caller caller([fd] { Recv(fd, 4, 0); });
      CloseUnder(fd);
      CloseUnder(copy);
      Barrier();
      caller.Join();
      Barrier();
    });

Case waits_for_all(
    "waits_for_all",
    [](int fd) {
      SendAll(fd, "half", 4);
      Peer(fd, [](int to) { SendAll(to, "half", 4); });
    },
    [](int fd) {
      Caller caller([fd] { Recv(fd, 8, MSG_WAITALL); });
      CloseUnder(fd);
      Barrier();
      caller.Join();
      Barrier();
    });

Case end_behind_close(
    "end_of_the_peer",
    [](int fd) { Peer(fd, [](int to) { ::shutdown(to, SHUT_WR); }); },
    [](int fd) {
      Caller caller([fd] { Recv(fd, 4, 0); });
      CloseUnder(fd);
      Barrier();
      caller.Join();
      Barrier();
    });

// What it does not read makes a reset of the end, as of any.
Case unread_behind_close(
    "unread_makes_a_reset",
    [](int fd) { Peer(fd, [](int to) { SendAll(to, "data and more", 13); }); },
    [](int fd) {
      Caller caller([fd] { Recv(fd, 4, 0); });
      CloseUnder(fd);
      Barrier();
      caller.Join();
      Barrier();
    });

Case time_is_over(
    "time_is_over", [](int fd) { Peer(fd, [](int) { Barrier(); }); },
    [](int fd) {
      // (On a busy machine the peer may take long to see that it stands.)
      const timeval limit{3, 0};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
      const std::int64_t start = static_cast<std::int64_t>(NowMs());
      Caller caller([fd] { Recv(fd, 4, 0); });
      ::poll(nullptr, 0, 1000);
      CloseUnder(fd);
      Barrier();
      caller.Join();
      // (From its own beginning.)
      const std::int64_t took = static_cast<std::int64_t>(NowMs()) - start;
      Log("in time: %d", took >= 2990 && took < 3900);
      Barrier();
      Barrier();
    });

// Two of them: the first to return does not end it.
Case two_callers(
    "two_callers",
    [](int fd) {
      Barrier();
      LogStands(fd);
      SendAll(fd, "x", 1);
      Barrier();
      LogStands(fd);
      SendAll(fd, "x", 1);
      LogDrain(fd);
      Barrier();
    },
    [](int fd) {
      std::atomic<int> over{0};
      const auto call = [fd, &over] {
        char byte;
        const ssize_t n = ::recv(fd, &byte, 1, 0);
        Log("recv: %zd", n);
        ++over;
      };
      Caller one(call);
      Caller two(call);
      CloseUnder(fd);
      Barrier();
      while (over == 0) ::poll(nullptr, 0, 1);
      Barrier();
      one.Join();
      two.Join();
      Barrier();
    });

void Nothing(int) {}

void Interrupted(int fd, int flags) {
  struct sigaction action = {};
  action.sa_handler = Nothing;
  action.sa_flags = flags;
  CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
  Caller caller([fd] { Recv(fd, 4, 0); });
  CloseUnder(fd);
  Barrier();
  Barrier();
  ::pthread_kill(caller.handle(), SIGUSR1);
  caller.Join();
  Barrier();
}

Case interrupted(
    "interrupted", [](int fd) { Peer(fd, [](int) { Barrier(); }); },
    [](int fd) { Interrupted(fd, 0); });
// The kernel makes the call again, by the number.
Case restarted(
    "restarted", [](int fd) { Peer(fd, [](int) { Barrier(); }); },
    [](int fd) { Interrupted(fd, SA_RESTART); });

Case cancelled(
    "cancelled", [](int fd) { Peer(fd, [](int) { Barrier(); }); },
    [](int fd) {
      struct Thread {
        int fd;
        std::atomic<int> number{0};
      } with{fd, {}};
      pthread_t thread;
      CHECK_THAT(::pthread_create(
                     &thread, nullptr,
                     [](void* at) -> void* {
                       auto* const own = static_cast<Thread*>(at);
                       own->number = OwnNumber();
                       char byte;
                       ::recv(own->fd, &byte, 1, 0);
                       return nullptr;
                     },
                     &with) == 0);
      AwaitSleep(with.number);
      CloseUnder(fd);
      Barrier();
      Barrier();
      CHECK_THAT(::pthread_cancel(thread) == 0);
      void* result;
      CHECK_THAT(::pthread_join(thread, &result) == 0);
      Log("cancelled: %d", result == PTHREAD_CANCELED);
      Barrier();
    });

// A send that waits for room has all of it, and the end behind that.
constexpr std::size_t kMuch = 24 << 20;
Case sender(
    "send_goes_on",
    [](int fd) {
      Barrier();
      RecvBulk(fd, 5, kMuch);
      LogDrain(fd);
      Barrier();
    },
    [](int fd) {
      std::vector<unsigned char> bytes(kMuch);
      Pattern(5, 0, bytes.data(), bytes.size());
      Caller caller([&] {
        const ssize_t n = ::send(fd, bytes.data(), bytes.size(), 0);
        Log("send: %zd %s", n, n < 0 ? ErrorName(errno) : "");
      });
      CloseUnder(fd);
      Barrier();
      caller.Join();
      Barrier();
    },
    {.seconds = 60});

// The connection leaves its lane while the call has it.
Case forked(
    "fork_beside",
    [](int fd) { Peer(fd, [](int to) { SendAll(to, "data", 4); }); },
    [](int fd) {
      Caller caller([fd] { Recv(fd, 4, 0); });
      CloseUnder(fd);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      LogChild(child);
      Barrier();
      caller.Join();
      Barrier();
    });

}  // namespace

#if defined(__SANITIZE_THREAD__)
// What these do on purpose, as TSan sees it while TCP has the connection.
extern "C" [[gnu::visibility("default")]] const char*
__tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:CloseUnder\n";
}
#endif
