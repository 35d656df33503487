// What programs do to their loader and their system calls: libraries opened
// late, children that no preload reaches, filters.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/hidden_syscall.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

// By read and write, as a sandbox lets one.
void Call(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    char text[16];
    char back[16];
    Pattern(21, static_cast<std::uint64_t>(i) * 16, text, 16);
    CHECK_THAT(::write(fd, text, 16) == 16);
    std::size_t got = 0;
    while (got < 16) {
      pollfd one{fd, POLLIN, 0};
      CHECK_THAT(::poll(&one, 1, -1) == 1);
      const ssize_t n = ::read(fd, back + got, 16 - got);
      CHECK_THAT(n > 0);
      got += static_cast<std::size_t>(n);
    }
    CHECK_THAT(std::memcmp(text, back, 16) == 0);
  }
}

// A file beside this program.
std::string Beside(const char* name) {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  CHECK_THAT(n > 0);
  std::string all(path, static_cast<std::size_t>(n));
  return all.substr(0, all.rfind('/') + 1) + name;
}

// --- A million descriptors

// Kilobytes that this process has in memory.
long Resident() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK_THAT(file != nullptr);
  long total = 0, resident = 0;
  CHECK_THAT(std::fscanf(file, "%ld %ld", &total, &resident) == 2);
  std::fclose(file);
  return resident * (::sysconf(_SC_PAGESIZE) / 1024);
}

void Fork() {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) ::_exit(0);
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
}

// Raises the limit to a million, closes them all as daemons do, and uses the
// last ones: for no more memory than the numbers take that are in use.
Case million(
    "million_descriptors",
    [](int fd) {
      Echo(fd, 600);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      const rlimit all{1'001'000, std::max<rlim_t>(limit.rlim_max, 1'001'000)};
      if (::setrlimit(RLIMIT_NOFILE, &all) == 0) {
        limit = all;
      } else {  // who may not raise it that far
        limit.rlim_cur = limit.rlim_max;
        CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      }
      const int last = static_cast<int>(limit.rlim_cur) - 1000;
      Fork();
      const long before = Resident();
      const long long start = NowMs();
      for (int i = 30; i < last; ++i) {
        if (i != fd) ::close(i);
      }
      const long long closed = NowMs();
      Call(fd, 100);
      ::close_range(30, ~0u, 0);
      Call(fd, 100);
      const int copy = ::fcntl(fd, F_DUPFD, last - 1);
      CHECK_THAT(copy >= last - 1);
      Call(copy, 100);
      // Whatever looks at every number.
      const long long forks = NowMs();
      for (int i = 0; i < 5; ++i) Fork();
      const long long forked = NowMs();
      Call(copy, 100);
      const long after = Resident();
      if (std::getenv("PAIR_TIMES") != nullptr) {
        std::fprintf(stderr, "up to %d: %lld ms, a fork %lld ms, %ld KiB\n",
                     last, closed - start, (forked - forks) / 5,
                     after - before);
      }
      if (after - before > 2048) Fail("%ld KiB more", after - before);
      CHECK_THAT(::close(fd) == 0);
      Call(copy, 100);
      CHECK_THAT(::close(copy) == 0);
      Log("done");
    },
    {.seconds = 40});

// --- Filters

sock_filter Load(unsigned at) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at); }

using Numbers = std::vector<unsigned>;

// `these` calls get `with`, all others get `others`.
std::vector<sock_filter> Filter(const Numbers& these, unsigned with,
                                unsigned others) {
  std::vector<sock_filter> all = {Load(offsetof(seccomp_data, nr))};
  for (const unsigned number : these) {
    all.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    all.push_back(BPF_STMT(BPF_RET | BPF_K, with));
  }
  all.push_back(BPF_STMT(BPF_RET | BPF_K, others));
  return all;
}

// What OpenSSH leaves to the process that speaks to the network before
// authentication, and the program's end.
const Numbers kOpenSsh = {
    SYS_brk,       SYS_clock_gettime,  SYS_clock_nanosleep,
    SYS_close,     SYS_exit,           SYS_exit_group,
    SYS_futex,     SYS_getpgid,        SYS_getpid,
    SYS_getrandom, SYS_gettimeofday,   SYS_getuid,
    SYS_madvise,   SYS_mmap,           SYS_mprotect,
    SYS_mremap,    SYS_munmap,         SYS_nanosleep,
    SYS_poll,      SYS_ppoll,          SYS_pselect6,
    SYS_read,      SYS_rt_sigprocmask, SYS_select,
    SYS_shutdown,  SYS_time,           SYS_write,
};

enum class How { kPrctl, kPastLibc };

void Install(std::vector<sock_filter> filter, How how) {
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  CHECK_THAT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (how == How::kPrctl) {
    CHECK_THAT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    return;
  }
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_seccomp), "D"(SECCOMP_SET_MODE_FILTER), "S"(0),
                 "d"(&program)
               : "rcx", "r11", "memory");
  CHECK_THAT(result == 0);
}

// A call that is not on the list ends the process.
Case seccomp_kill(
    "seccomp_kill",
    [](int fd) {
      Echo(fd, 700);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      Install(Filter(kOpenSsh, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS),
              How::kPrctl);
      Call(fd, 500);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      char byte;
      Result("read", ::read(fd, &byte, 1));
      Result("close", ::close(fd));
    });

// A server of OpenSSH's kind: whoever connects speaks to a child in a sandbox
// first, then to its parent, which has waited for that and holds the connection
// alone.
Case seccomp_child(
    "seccomp_child",
    [](int fd) {
      Echo(fd, 500);
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const pid_t child = ::fork();
      if (child == 0) {
        Call(fd, 100);
        Install(Filter(kOpenSsh, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS),
                How::kPrctl);
        Call(fd, 200);
        ::exit(0);
      }
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("child: %x", static_cast<unsigned>(status));
      Warm(fd);
      ::close(fd);
    });

// How programs ask whether there are filters: none comes of it.
Case seccomp_asked(
    "seccomp_asked",
    [](int fd) {
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Result("prctl",
             ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0));
      Result("prctl", ::prctl(PR_SET_SECCOMP, 99, nullptr, 0, 0));
      Result("syscall", ::syscall(SYS_prctl, PR_SET_SECCOMP,
                                  SECCOMP_MODE_FILTER, nullptr, 0, 0));
      Warm(fd);
      ::close(fd);
    },
    {.warm = false});

// Calls that a lane needs are refused from now on.
const Numbers kRefused = {SYS_membarrier, SYS_memfd_create,  SYS_eventfd2,
                          SYS_socket,     SYS_openat,        SYS_clone3,
                          SYS_clone,      SYS_io_uring_setup};

Case seccomp_errno(
    "seccomp_errno",
    [](int fd) {
      Echo(fd, 1200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      Install(Filter(kRefused, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW),
              How::kPrctl);
      Call(fd, 1000);
      Result("close", ::close(fd));
    });

// The filter comes past libc, so nobody could leave the lane before it.  Every
// sleep must end all the same, and the bytes be on TCP in the end.
Case seccomp_past_libc(
    "seccomp_past_libc",
    [](int fd) {
      char text[16];
      for (int i = 0; i < 400; ++i) {
        RecvAll(fd, text, 16);
        // Longer than anybody spins: the client sleeps; and now and then longer
        // than a sleep's first part, which needs none of what is refused.
        if (i % 4 == 0) {
          timespec brief{0, i % 32 == 0 ? 10'000'000 : 1'000'000};
          ::nanosleep(&brief, nullptr);
        }
        SendAll(fd, text, 16);
      }
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      Install(Filter(kRefused, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW),
              How::kPastLibc);
      Call(fd, 200);
      const std::uint64_t before = TcpBytes(fd);
      Call(fd, 100);
      Log("over TCP: %d", TcpBytes(fd) - before >= 3200);
      Result("close", ::close(fd));
    });

// A sleep that ends by itself soon needs no fence among processes.  Each that
// is made is a fault of the filter's, whose handler, installed past everybody,
// makes it by an argument that the kernel looks at for other commands only.
constexpr unsigned kCounted = 0x5eed;
volatile int fences;

void OnFence(int, siginfo_t*, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  fences = fences + 1;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_membarrier), "D"(registers[REG_RDI]),
                 "S"(registers[REG_RSI]), "d"(kCounted)
               : "rcx", "r11", "memory");
  registers[REG_RAX] = result;
}

extern "C" void LeaveHandler();
asm(".text\n.globl LeaveHandler\nLeaveHandler: mov $15, %eax\nsyscall\n");

void CountFences() {
  const struct {
    void (*handler)(int, siginfo_t*, void*);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action = {OnFence, SA_SIGINFO | 0x04000000 /* SA_RESTORER */, LeaveHandler,
              0};
  CHECK_THAT(PastCall(SYS_rt_sigaction, SIGSYS, reinterpret_cast<long>(&action),
                      0, 8) == 0);
  Install({Load(offsetof(seccomp_data, nr)),
           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 5),
           Load(offsetof(seccomp_data, args[0])),
           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MEMBARRIER_CMD_GLOBAL_EXPEDITED,
                    0, 3),
           Load(offsetof(seccomp_data, args[2])),
           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kCounted, 1, 0),
           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)},
          How::kPastLibc);
}

Case brief_sleeps(
    "brief_sleeps",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      CountFences();
      for (int i = 0; i < 50; ++i) {
        CHECK_THAT(::epoll_wait(set, &event, 1, 3) == 0);
      }
      Log("fences of sleeps that end soon: %d", fences);
      CHECK_THAT(::epoll_wait(set, &event, 1, 30) == 0);
      const int of_long_one = fences;
      const std::uint64_t before = TcpBytes(fd);
      Call(fd, 100);
      if (TcpBytes(fd) == before) CHECK_THAT(of_long_one > 0);
      Result("close", ::close(fd));
    });

// --- Libraries

// Accepts one connection and echoes on it; then the first one goes on.
void ServeLibrary(int fd) {
  const int listener = ListenAndTell();
  const int other = Accept(listener);
  Echo(other, 500);
  LogDrain(other);
  ::close(other);
  ::close(listener);
  Echo(fd, 300);
  LogDrain(fd);
}

// `both`: the library is given the stream of this program too.
void UseLibrary(int fd, void* library, bool both) {
  if (library == nullptr) Fail("dlopen: %s", ::dlerror());
  using Talk = int (*)(int, int);
  const auto talk = reinterpret_cast<Talk>(::dlsym(library, "Talk"));
  const auto on = reinterpret_cast<Talk>(::dlsym(library, "TalkOn"));
  CHECK_THAT(talk != nullptr && on != nullptr);
  Result("its own connection", talk(static_cast<int>(Hear()), 500));
  if (both) {
    Result("ours", on(fd, 300));
  } else {
    Call(fd, 300);
  }
  Result("close", ::close(fd));
  Result("dlclose", ::dlclose(library));
}

Case late_library("dlopen", ServeLibrary, [](int fd) {
  const std::string path = Beside("libtalk.so");
  UseLibrary(fd, ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), true);
});

// It looks into its own libc first, past every preload: plain TCP for what it
// opens itself.
Case deep_library("dlopen_deepbind", ServeLibrary, [](int fd) {
  const std::string path = Beside("libtalk.so");
  UseLibrary(fd, ::dlopen(path.c_str(), RTLD_NOW | RTLD_DEEPBIND), false);
});

// The same, with a libc of its own.
Case apart_library("dlmopen", ServeLibrary, [](int fd) {
  const std::string path = Beside("libtalk.so");
  UseLibrary(fd, ::dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW), false);
});

// --- libc's functions by a handle

void* Handle(const char* library) {
  void* handle = ::dlopen(library, RTLD_NOW);
  if (handle == nullptr) Fail("dlopen: %s", ::dlerror());
  return handle;
}

template <class F>
F* Find(void* handle, const char* name) {
  ::dlerror();
  void* found = ::dlsym(handle, name);
  if (const char* error = ::dlerror()) Fail("dlsym: %s", error);
  CHECK_THAT(found != nullptr);
  return reinterpret_cast<F*>(found);
}

// Half of the messages by the program's own names.
template <class SendAs, class RecvAs>
void CallMixed(int fd, SendAs&& send_as, RecvAs&& recv_as) {
  for (int i = 0; i < 400; ++i) {
    char text[16];
    char back[16];
    std::memset(text, i & 0xff, sizeof text);
    CHECK_THAT((i % 2 == 0 ? ::send(fd, text, 16, 0)
                           : send_as(fd, text, 16, 0)) == 16);
    for (std::size_t got = 0; got < 16;) {
      const ssize_t n = i % 3 == 0 ? ::recv(fd, back + got, 16 - got, 0)
                                   : recv_as(fd, back + got, 16 - got, 0);
      CHECK_THAT(n > 0);
      got += static_cast<std::size_t>(n);
    }
    CHECK_THAT(std::memcmp(text, back, 16) == 0);
  }
  Result("close", ::close(fd));
}

struct ByHandle : Case {
  ByHandle(const char* name, const char* library)
      : Case(
            name,
            [](int fd) {
              Echo(fd, 400);
              LogDrain(fd);
            },
            [library](int fd) {
              void* const handle = Handle(library);
              CallMixed(fd, Find<decltype(::send)>(handle, "send"),
                        Find<decltype(::recv)>(handle, "recv"));
            }) {}
};
ByHandle of_libc("handle_of_libc", "libc.so.6");
ByHandle of_program("handle_of_program", nullptr);
// What it does not define itself is looked for in what it needs.
ByHandle of_another("handle_of_another", "libm.so.6");

Case with_version(
    "handle_with_version",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      void* const libc = Handle("libc.so.6");
      const auto find = [&](const char* name) {
        void* found = ::dlvsym(libc, name, "GLIBC_2.2.5");
        CHECK_THAT(found != nullptr);
        return found;
      };
      CallMixed(fd, reinterpret_cast<decltype(&::send)>(find("send")),
                reinterpret_cast<decltype(&::recv)>(find("recv")));
    });

Case same_everywhere(
    "handle_finds_what_names_find", [](int fd) { LogDrain(fd); },
    [](int fd) {
      void* const libc = Handle("libc.so.6");
      for (const char* name : {"read", "send", "recvmsg", "epoll_wait", "close",
                               "dup", "poll", "fork", "syscall", "dlsym"}) {
        void* const found = ::dlsym(libc, name);
        Log("%s: %d %d", name, found == ::dlsym(RTLD_DEFAULT, name),
            found == ::dlsym(RTLD_NEXT, name));
      }
      // These are nobody's but libc's.
      Log("%d", ::dlsym(libc, "strlen") == ::dlsym(RTLD_NEXT, "strlen"));
      Log("%d", ::dlsym(libc, "no_such_name") == nullptr);
      Log("%d", ::dlerror() != nullptr);
      ::close(fd);
    },
    {.warm = false});

Case numbers_by_handle(
    "handle_dup_and_epoll",
    [](int fd) {
      void* const libc = Handle("libc.so.6");
      const int copy = Find<decltype(::dup)>(libc, "dup")(fd);
      CHECK_THAT(copy >= 0);
      CHECK_THAT(Find<decltype(::close)>(libc, "close")(fd) == 0);
      const int set = Find<decltype(::epoll_create1)>(libc, "epoll_create1")(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(Find<decltype(::epoll_ctl)>(libc, "epoll_ctl")(
                     set, EPOLL_CTL_ADD, copy, &event) == 0);
      char byte;
      for (int i = 0; i < 300; ++i) {
        CHECK_THAT(Find<decltype(::epoll_wait)>(libc, "epoll_wait")(
                       set, &event, 1, 8000) == 1);
        CHECK_THAT(::read(copy, &byte, 1) == 1);
        CHECK_THAT(::write(copy, &byte, 1) == 1);
      }
      ::close(set);
      Result("close", ::close(copy));
    },
    [](int fd) {
      for (int i = 0; i < 300; ++i) {
        char byte = static_cast<char>(i);
        CHECK_THAT(::write(fd, &byte, 1) == 1);
        CHECK_THAT(::read(fd, &byte, 1) == 1 && byte == static_cast<char>(i));
      }
      LogDrain(fd);
    });

// --- System calls of its own that come later

// A library that waits and reads by machine code of its own is given a stream
// that may be on a lane.
Case late_calls(
    "dlopen_brings_own_calls",
    [](int fd) {
      Call(fd, 100);
      void* const library = Handle(Beside("libowncalls.so").c_str());
      Result("echoed", Find<int(int)>(library, "EchoByOwnCalls")(fd));
    },
    [](int fd) {
      Echo(fd, 100);
      Call(fd, 300);
      Result("close", ::close(fd));
    });

// Machine code that was written by the program itself, before the connection.
Case made_calls(
    "own_calls_made",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      // mov eax, 0; syscall; ret
      constexpr unsigned char kRead[] = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3};
      void* const memory =
          ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK_THAT(memory != MAP_FAILED);
      std::memcpy(memory, kRead, sizeof kRead);
      using Read = long (*)(int, void*, std::size_t);
      const auto read = reinterpret_cast<Read>(memory);
      CallMixed(fd, ::send, [&](int number, void* to, std::size_t size, int) {
        return read(number, to, size);
      });
    },
    {.warm = false});

// liburing and libaio that only a library opened late has brought.
void UsePlug(int fd) {
  void* const plug =
      ::dlopen(Beside("libplug.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plug == nullptr) Fail("dlopen: %s", ::dlerror());
  for (const char* name : {"TalkByUring", "TalkByAio"}) {
    using Talk = int (*)(int, char*, int);
    const auto talk = reinterpret_cast<Talk>(::dlsym(plug, name));
    CHECK_THAT(talk != nullptr);
    char bytes[16];
    char expected[16];
    std::memset(bytes, name[6], sizeof bytes);
    std::memcpy(expected, bytes, sizeof bytes);
    const int n = talk(fd, bytes, sizeof bytes);
    Log("%s: %s", name, n < 0 ? ErrorName(-n) : "done");
    if (n >= 0) CHECK_THAT(n == 16 && std::memcmp(bytes, expected, 16) == 0);
  }
  Call(fd, 100);
  Result("close", ::close(fd));
}

Case plug(
    "dlopen_uring_and_aio",
    [](int fd) {
      char text[16];
      while (::recv(fd, text, 16, MSG_WAITALL) == 16) SendAll(fd, text, 16);
    },
    UsePlug);

// The loader searches the DT_RPATH of a library for what that needs, and for
// what the needed one opens.
Case by_rpath(
    "dlopen_by_rpath",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      void* const library = Handle(Beside("libsearcher.so").c_str());
      const auto through = Find<int(const char*)>(library, "Through");
      Log("from the plug: %d", through("libsearched_plug.so"));
      Call(fd, 100);
      Result("close", ::close(fd));
    });

// --- Programs that no preload reaches

void BecomeOther(int fd, const char* name) {
  const std::string path = Beside(name);
  const std::string another = Beside("cat_static_pie");
  int told[2];
  CHECK_THAT(::pipe2(told, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(fd, 0);
    ::dup2(fd, 1);
    ::close(fd);
    ::execl(path.c_str(), name, static_cast<char*>(nullptr));
    // (Under some hypervisors a kernel runs no 32-bit program at all.)
    if (errno == ENOEXEC && ::write(told[1], "x", 1) == 1) {
      ::execl(another.c_str(), name, static_cast<char*>(nullptr));
    }
    ::_exit(99);
  }
  ::close(fd);
  ::close(told[1]);
  char byte;
  if (::read(told[0], &byte, 1) == 1) Log("SKIPPED: %s cannot run here", name);
  ::close(told[0]);
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("child: %x", static_cast<unsigned>(status));
}

Case static_pie(
    "exec_static_pie", [](int fd) { BecomeOther(fd, "cat_static_pie"); },
    SpeakToCat);
Case half_width(
    "exec_32_bit", [](int fd) { BecomeOther(fd, "cat_32"); }, SpeakToCat);

// --- Programs whose loader cannot load the preload

// A folder with `cat_other`, a program of the loader ld_other, which is cat,
// and a script of it.
class OtherPrograms {
 public:
  OtherPrograms() {
    CHECK_THAT(::mkdtemp(folder_) != nullptr);
    const std::string loader = Beside("ld_other");
    struct {
      Elf64_Ehdr header;
      Elf64_Phdr segments[2];
    } head{};
    std::memcpy(head.header.e_ident, ELFMAG, SELFMAG);
    head.header.e_ident[EI_CLASS] = ELFCLASS64;
    head.header.e_ident[EI_DATA] = ELFDATA2LSB;
    head.header.e_ident[EI_VERSION] = EV_CURRENT;
    head.header.e_type = ET_EXEC;
    head.header.e_machine = EM_X86_64;
    head.header.e_version = EV_CURRENT;
    head.header.e_phoff = sizeof head.header;
    head.header.e_ehsize = sizeof head.header;
    head.header.e_phentsize = sizeof head.segments[0];
    head.header.e_phnum = 2;
    head.segments[0].p_type = PT_INTERP;
    head.segments[0].p_offset = sizeof head;
    head.segments[0].p_filesz = loader.size() + 1;
    head.segments[1].p_type = PT_LOAD;
    head.segments[1].p_flags = PF_R;
    head.segments[1].p_vaddr = 0x400000;
    head.segments[1].p_filesz = sizeof head;
    head.segments[1].p_memsz = sizeof head;
    head.segments[1].p_align = 4096;
    std::string program(reinterpret_cast<const char*>(&head), sizeof head);
    program.append(loader.c_str(), loader.size() + 1);
    Write("cat_other", program);
    Write("script_other", "#! " + Path("cat_other") + "\n");
  }
  ~OtherPrograms() {
    ::unlink(Path("cat_other").c_str());
    ::unlink(Path("script_other").c_str());
    ::rmdir(folder_);
  }
  OtherPrograms(const OtherPrograms&) = delete;
  OtherPrograms& operator=(const OtherPrograms&) = delete;
  std::string Path(const char* name) const {
    return std::string(folder_) + "/" + name;
  }
  const char* folder() const { return folder_; }

 private:
  void Write(const char* name, const std::string& bytes) {
    const int file = ::open(Path(name).c_str(), O_WRONLY | O_CREAT, 0755);
    CHECK_THAT(file >= 0 && ::write(file, bytes.data(), bytes.size()) ==
                                static_cast<ssize_t>(bytes.size()));
    ::close(file);
  }
  char folder_[32] = "/tmp/other.XXXXXX";
};

enum class By { kExec, kVfork, kDescriptor, kSpawn, kScript, kShell };

void BecomeOtherLoaders(int fd, By by) {
  const OtherPrograms programs;
  // Found where nothing is before.
  ::setenv("PATH", (std::string("/nowhere:") + programs.folder()).c_str(), 1);
  const std::string path =
      programs.Path(by == By::kScript ? "script_other" : "cat_other");
  const std::string command = "exec " + path;
  char name[] = "cat_other";
  char* argv[] = {name, nullptr};
  const int program = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  pid_t child = -1;
  if (by == By::kSpawn) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, fd, 0);
    ::posix_spawn_file_actions_adddup2(&actions, fd, 1);
    ::posix_spawn_file_actions_addclose(&actions, fd);
    CHECK_THAT(::posix_spawnp(&child, name, &actions, nullptr, argv, environ) ==
               0);
    ::posix_spawn_file_actions_destroy(&actions);
  } else {
    child = by == By::kVfork ? ::vfork() : ::fork();
    if (child == 0) {
      ::dup2(fd, 0);
      ::dup2(fd, 1);
      ::close(fd);
      if (by == By::kExec) ::execvp(name, argv);
      if (by == By::kDescriptor) ::fexecve(program, argv, environ);
      if (by == By::kShell) {
        ::execl("/bin/sh", "sh", "-c", command.c_str(),
                static_cast<char*>(nullptr));
      }
      ::execv(path.c_str(), argv);
      ::_exit(99);
    }
  }
  ::close(fd);
  ::close(program);
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("child: %x", static_cast<unsigned>(status));
}

struct OtherLoader : Case {
  OtherLoader(const char* name, By by)
      : Case(
            name, [by](int fd) { BecomeOtherLoaders(fd, by); }, SpeakToCat) {}
};
OtherLoader by_exec("exec_other_loader", By::kExec);
OtherLoader by_vfork("vfork_other_loader", By::kVfork);
OtherLoader by_descriptor("fexecve_other_loader", By::kDescriptor);
OtherLoader by_spawn("spawn_other_loader", By::kSpawn);
OtherLoader by_script("script_other_loader", By::kScript);
OtherLoader by_shell("shell_other_loader", By::kShell);

}  // namespace
