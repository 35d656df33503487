// Processes: fork, exec, spawn, filters of system calls, and the end.

#include <alloca.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/lifecycle/clone.h"
#include "lib/posix/lifecycle/fork.h"
#include "lib/posix/lifecycle/handover.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/lifecycle/shell.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/lookup.h"

namespace rcsock::posix::hook {
namespace {

// Whether the kernel can read what exec is given, as far as rcsock reads it.
// Asks the kernel once for each page.
class Probe {
 public:
  bool Readable(const void* at) {
    const auto page = reinterpret_cast<std::uintptr_t>(at) / 4096;
    if (page == seen_) return true;
    // The kernel reads the set first, and then refuses this unknown change of
    // the mask.  The test is at the page's end, since its start may be null,
    // which is no set.
    constexpr int kNoSuch = 1000;
    constexpr int kSet = 8;
    if (::syscall(SYS_rt_sigprocmask, kNoSuch, (page + 1) * 4096 - kSet,
                  nullptr, kSet) != 0 &&
        errno == EFAULT) {
      return false;
    }
    seen_ = page;
    return true;
  }

 private:
  std::uintptr_t seen_ = UINTPTR_MAX;  // none
};

bool Mapped(const char* program, char* const environment[]) {
  const int saved = errno;
  Probe list;
  Probe strings;
  bool mapped = program == nullptr || strings.Readable(program);
  for (std::size_t i = 0; mapped && environment != nullptr; ++i) {
    mapped = list.Readable(environment + i);
    if (!mapped || environment[i] == nullptr) break;
    mapped = strings.Readable(environment[i]);
  }
  errno = saved;
  return mapped;
}

// Runs `call` with the environment for the new program.  `call` returns
// something else than 0 if there is no new program.
template <class Call>
int WithHandover(bool spawn, const Executed& program, char* const environment[],
                 Call&& call) {
  // The kernel refuses the call, so rcsock changes nothing for it.
  if (!Mapped(program.path, environment)) return call(environment);
  std::optional<SpawnUnderWay> under_way;
  if (spawn) under_way.emplace();
  Handover over(spawn, program, environment);
  int result;
  if (!over.Extends()) {
    result = call(environment);
    if (!spawn || result != 0) over.TakeBack();
    return result;
  }
  // The environment is on the stack, since the caller may be a child of vfork.
  auto** extended = static_cast<char**>(
      ::alloca(Handover::Room(environment) * sizeof(char*)));
  auto* text = static_cast<char*>(::alloca(over.Text(environment) + 1));
  over.Extend(environment, extended, text);
  result = call(extended);
  if (!spawn || result != 0) over.TakeBack();
  return result;
}

}  // namespace

int fork() {
  const pid_t child = real::fork();
  if (child < 0) {
    const int saved = errno;
    ForkFailed();
    errno = saved;
  }
  return child;
}

int _Fork() {
  // glibc has this function since 2.34.  On an earlier glibc a program that
  // looks for the function finds rcsock's.
  if (real::IsMissing(reinterpret_cast<const void*>(RCSOCK_REAL(_Fork)))) {
    return hook::fork();
  }
  return ForkWithoutHandlers(&real::_Fork);
}

int execve(const char* path, char* const argv[], char* const envp[]) {
  const Executed program{path, path};
  return WithHandover(false, program, envp, [&](char* const* environment) {
    return real::execve(path, argv, environment);
  });
}

int execv(const char* path, char* const argv[]) {
  return hook::execve(path, argv, ProgramEnvironment());
}

int execvp(const char* file, char* const argv[]) {
  return hook::execvpe(file, argv, ProgramEnvironment());
}

int execvpe(const char* file, char* const argv[], char* const envp[]) {
  const Executed program{file, file, AT_FDCWD, true};
  return WithHandover(false, program, envp, [&](char* const* environment) {
    return real::execvpe(file, argv, environment);
  });
}

int fexecve(int fd, char* const argv[], char* const envp[]) {
  const Executed program{nullptr, "", fd};
  return WithHandover(false, program, envp, [&](char* const* environment) {
    return real::fexecve(fd, argv, environment);
  });
}

int execveat(int fd, const char* path, char* const argv[], char* const envp[],
             int flags) {
  const Executed program{nullptr, path, fd};
  return WithHandover(false, program, envp, [&](char* const* environment) {
    return real::execveat(fd, path, argv, environment, flags);
  });
}

int posix_spawn(pid_t* pid, const char* path,
                const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const argv[],
                char* const envp[]) {
  const Executed program{path, path};
  return WithHandover(true, program, envp, [&](char* const* environment) {
    return real::posix_spawn(pid, path, actions, attributes, argv, environment);
  });
}

int posix_spawnp(pid_t* pid, const char* file,
                 const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const argv[],
                 char* const envp[]) {
  const Executed program{file, file, AT_FDCWD, true};
  return WithHandover(true, program, envp, [&](char* const* environment) {
    return real::posix_spawnp(pid, file, actions, attributes, argv,
                              environment);
  });
}

// system and popen take the environment from `environ`, and not from an
// argument.
int system(const char* command) {
  if (command == nullptr) return real::system(command);
  const int saved = errno;
  int status = -1;
  char** const own = ProgramEnvironment();
  WithHandover(true, {"sh", "/bin/sh"}, own, [&](char* const* environment) {
    errno = 0;
    status = environment == environ ? real::system(command)
                                    : SystemWith(command, environment);
    // A command's own status does not mean that no command ran.
    return errno == EAGAIN || errno == ENOMEM ? -1 : 0;
  });
  if (errno == 0) errno = saved;
  return status;
}

FILE* popen(const char* command, const char* type) {
  FILE* pipe = nullptr;
  char** const own = ProgramEnvironment();
  WithHandover(true, {nullptr, "/bin/sh"}, own, [&](char* const* environment) {
    const PopenEnvironment during(environment == own ? nullptr : environment);
    pipe = real::popen(command, type);
    return pipe != nullptr ? 0 : -1;
  });
  return pipe;
}

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions,
                                     int from, int to) {
  if (Sock* sock = LookupSock(from)) sock->in_spawn_actions.store(true);
  return real::posix_spawn_file_actions_adddup2(actions, from, to);
}

void _exit(int status) {
  AtExit();
  real::_exit(status);
}

void _Exit(int status) {
  AtExit();
  real::_Exit(status);
}

// AtExit() is the last of its handlers (InitProcess).
void quick_exit(int status) { real::quick_exit(status); }

// --- libc makes these functions of calls of its own, which do not pass the
// hooks

// A child of login_tty is often about to become a program without rcsock.  If
// the hooks did not see the child close its connections, their other holders
// would count it for ever.
int login_tty(int fd) {
  ::setsid();
  if (::syscall(SYS_ioctl, fd, TIOCSCTTY, 0) != 0) return -1;
  for (int number = 0; number < 3; ++number) {
    while (hook::dup2(fd, number) < 0 && errno == EBUSY) {
    }
  }
  if (fd > 2) hook::close(fd);
  return 0;
}

int forkpty(int* master, char* name, const termios* settings,
            const winsize* size) {
  const std::uint32_t before = LastFork();
  const int child = RCSOCK_REAL(forkpty)(master, name, settings, size);
  const int saved = errno;
  if (child == 0) {
    // Numbers 0 to 2 name the terminal now.
    for (int number = 0; number < 3; ++number) Evict(number);
  } else if (child < 0 && LastFork() != before) {
    ForkFailed();
  }
  errno = saved;
  return child;
}

// The parent in libc's daemon ends without a hook, and would count as a holder
// of its connections for ever.
int daemon(int nochdir, int noclose) {
  const pid_t child = hook::fork();
  if (child < 0) return -1;
  if (child > 0) hook::_exit(0);
  if (::setsid() < 0) return -1;
  if (nochdir == 0) (void)!::chdir("/");
  if (noclose != 0) return 0;
  const auto null =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0));
  if (null < 0) return -1;
  struct stat status {};
  const bool known = ::fstat(null, &status) == 0;
  if (!known || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(1, 3)) {
    hook::close(null);
    if (known) errno = ENODEV;
    return -1;
  }
  for (int number = 0; number < 3; ++number) hook::dup2(null, number);
  if (null > 2) hook::close(null);
  return 0;
}

// --- Filters of system calls

int Prctl(int option, const unsigned long (&arguments)[4]) {
  BeforePrctl(option, arguments[0], arguments[1]);
  return RCSOCK_REAL(prctl)(option, arguments[0], arguments[1], arguments[2],
                            arguments[3]);
}

int seccomp_load(void* filter) {
  EnterSandbox();
  return real::seccomp_load(filter);
}

}  // namespace rcsock::posix::hook
