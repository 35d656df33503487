// Faults of a program's own, in a process that has a stream: they end it, or
// come to its handler, as they would anywhere.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kPage = 4096;

void* Map(int protection) {
  void* const at =
      ::mmap(nullptr, kPage, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_THAT(at != MAP_FAILED);
  return at;
}

void Poke(void* at) { *static_cast<volatile char*>(Opaque(at)) = 1; }
// What is in no half of the address space.
void* const kNowhere = reinterpret_cast<void*>(0x1234'0000'0000'0000);

// Of a file that ends before it.
void* BehindTheEnd() {
  const int file = ::memfd_create("crashes", 0);
  CHECK_THAT(file >= 0);
  void* const at =
      ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK_THAT(at != MAP_FAILED);
  ::close(file);
  return at;
}

[[gnu::noinline]] int Overflow(int depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(depth);
  return Opaque(depth) < 0 ? 0 : Overflow(depth + 1) + frame[0];
}

// How a child ends that does this.
void Ends(const char* what, const std::function<void()>& act) {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    act();
    ::_exit(77);
  }
  Log("%s", what);
  LogChild(child);
}

void BySigaction(int number, void (*handler)(int, siginfo_t*, void*),
                 int flags) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  CHECK_THAT(::sigaction(number, &action, nullptr) == 0);
}

void OtherStack() {
  static char stack[64 * 1024];
  const stack_t other{stack, 0, sizeof stack};
  CHECK_THAT(::sigaltstack(&other, nullptr) == 0);
}

// Its end says what it was told: a bit each for what is as it should be.
void* expected;
void Told(int number, siginfo_t* info, void* context) {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  const int code = number == SIGSEGV ? 1 : 2;
  ::_exit(code | (info->si_addr == expected ? 4 : 0) |
          (context != nullptr ? 8 : 0) | (info->si_code & 7) << 4 |
          (::sigismember(&mask, number) == 1 ? 0x80 : 0));
}

void Nothing(int) {}

// So many that the stream is on its lane, in modes that do not wait for that.
constexpr int kTrips = 2'000;

void Server(int fd) {
  Echo(fd, kTrips);
  Barrier();
  Echo(fd, 10);
}

void Client(int fd) {
  Call(fd, kTrips);
  Ends("null", [] { Poke(nullptr); });
  Ends("nowhere", [] { Poke(kNowhere); });
  Ends("read-only", [] { Poke(Map(PROT_READ)); });
  Ends("behind the end", [] { Poke(BehindTheEnd()); });
  Ends("overflow", [] { Overflow(0); });
  Ends("overflow, another stack", [] {
    OtherStack();
    Overflow(0);
  });
  Ends("in a thread", [] {
    pthread_t thread;
    ::pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          Poke(nullptr);
          return nullptr;
        },
        nullptr);
    ::pthread_join(thread, nullptr);
  });
  Ends("blocked", [] {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    Poke(nullptr);
  });
  Ends("ignored", [] {
    ::signal(SIGSEGV, SIG_IGN);
    Poke(nullptr);
  });
  for (const int number : {SIGSEGV, SIGBUS}) {
    Ends("raise", [=] { ::raise(number); });
    Ends("kill", [=] { ::kill(::getpid(), number); });
    Ends("tgkill", [=] {
      ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), number);
    });
    Ends("sigqueue", [=] { ::sigqueue(::getpid(), number, sigval{}); });
    Ends("from another", [=] {
      const pid_t parent = ::getpid();
      if (::fork() == 0) {
        ::kill(parent, number);
        ::_exit(0);
      }
      for (;;) ::pause();
    });
    Ends("kill, ignored", [=] {
      ::signal(number, SIG_IGN);
      ::kill(::getpid(), number);
    });
    Ends("kill, blocked, unblocked", [=] {
      sigset_t one;
      ::sigemptyset(&one);
      ::sigaddset(&one, number);
      ::sigprocmask(SIG_BLOCK, &one, nullptr);
      ::kill(::getpid(), number);
      sigset_t pending;
      ::sigpending(&pending);
      if (::sigismember(&pending, number) != 1) ::_exit(1);
      ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
    });
  }
  Ends("vfork", [] {
    const pid_t child = ::vfork();
    if (child == 0) {
      Poke(nullptr);
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    // This process has what it had.
    if (!WIFSIGNALED(status)) ::_exit(2);
    Poke(nullptr);
  });

  Ends("handler", [] {
    expected = Map(PROT_NONE);
    BySigaction(SIGSEGV, Told, 0);
    Poke(expected);
  });
  Ends("handler, SA_NODEFER", [] {
    expected = nullptr;
    BySigaction(SIGSEGV, Told, SA_NODEFER);
    Poke(expected);
  });
  Ends("handler, behind the end", [] {
    expected = BehindTheEnd();
    BySigaction(SIGBUS, Told, 0);
    Poke(expected);
  });
  Ends("handler, overflow, another stack", [] {
    OtherStack();
    BySigaction(
        SIGSEGV, [](int, siginfo_t*, void*) { ::_exit(5); }, SA_ONSTACK);
    Overflow(0);
  });
  Ends("handler, overflow, no other stack", [] {
    BySigaction(
        SIGSEGV, [](int, siginfo_t*, void*) { ::_exit(5); }, 0);
    Overflow(0);
  });
  Ends("handler, once", [] {
    BySigaction(
        SIGSEGV, [](int, siginfo_t*, void*) {}, static_cast<int>(SA_RESETHAND));
    Poke(nullptr);
  });
  Ends("handler, which sets the default", [] {
    ::signal(SIGSEGV, [](int number) { ::signal(number, SIG_DFL); });
    Poke(nullptr);
  });
  Ends("handler, which raises", [] {
    ::signal(SIGSEGV, [](int number) {
      ::signal(number, SIG_DFL);
      ::raise(number);
    });
    Poke(nullptr);
  });
  Ends("handler, which jumps", [] {
    static sigjmp_buf out;
    ::signal(SIGSEGV, [](int) { ::siglongjmp(out, 1); });
    for (static int i = 0; i < 100; ++i) {
      if (::sigsetjmp(out, 1) == 0) Poke(nullptr);
    }
    ::_exit(6);
  });
  Ends("exec",
       [] { ::execl("/bin/sh", "sh", "-c", "kill -SEGV $$", nullptr); });
  Barrier();
  Call(fd, 10);
}

Case crashes("crashes", Server, Client);

const char* Is(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    return action.sa_sigaction == Told ? "Told" : "unknown, SA_SIGINFO";
  }
  return action.sa_handler == SIG_DFL   ? "default"
         : action.sa_handler == SIG_IGN ? "ignored"
         : action.sa_handler == Nothing ? "Nothing"
                                        : "unknown";
}

void LogAction(const char* what, const struct sigaction& action) {
  Log("%s: %s, flags %x, SIGUSR1 %d", what, Is(action),
      static_cast<unsigned>(action.sa_flags),
      ::sigismember(&action.sa_mask, SIGUSR1));
}

void Ask(const char* what, int number) {
  struct sigaction now {};
  CHECK_THAT(::sigaction(number, nullptr, &now) == 0);
  LogAction(what, now);
}

// What is asked for is what has been set.
Case dispositions("dispositions", Server, [](int fd) {
  Call(fd, kTrips);
  for (const int number : {SIGSEGV, SIGBUS}) {
    Ask("at first", number);
    struct sigaction action {};
    struct sigaction old {};
    action.sa_sigaction = Told;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaddset(&action.sa_mask, SIGUSR1);
    CHECK_THAT(::sigaction(number, &action, &old) == 0);
    LogAction("before Told", old);
    Ask("Told", number);
    // What it was, as programs do.
    CHECK_THAT(::sigaction(number, &old, &action) == 0);
    LogAction("before the old one", action);
    Ask("the old one", number);
    struct sigaction fallback {};
    fallback.sa_flags = SA_NODEFER | SA_RESTART;
    ::sigaddset(&fallback.sa_mask, SIGUSR1);
    CHECK_THAT(::sigaction(number, &fallback, &old) == 0);
    LogAction("before default with flags", old);
    Ask("default with flags", number);
    CHECK_THAT(::sigaction(number, &fallback, &old) == 0);
    LogAction("once more", old);
    Log("signal: %d", ::signal(number, Nothing) == SIG_DFL);
    Log("signal: %d", ::signal(number, SIG_IGN) == Nothing);
    Log("signal: %d", ::signal(number, SIG_DFL) == SIG_IGN);
    Log("signal: %d", ::signal(number, SIG_DFL) == SIG_DFL);
    Ask("in the end", number);
  }
  Barrier();
  Call(fd, 10);
});

}  // namespace
