// Making, closing, copying and configuring descriptors; processes.

#include <alloca.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/nbd.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lib/base/internal.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/clone.h"
#include "lib/posix/handover.h"
#include "lib/posix/hooks.h"
#include "lib/posix/process.h"
#include "lib/posix/shell.h"
#include "lib/posix/signals.h"
#include "lib/posix/stdio.h"
#include "lib/posix/table.h"

namespace rcsock::posix::hook {
namespace {

bool Inet(int family) { return family == AF_INET || family == AF_INET6; }

// dup2 and dup3 would take a descriptor of rcsock's own away.
bool RefuseTarget(int to) {
  if (!base::IsInternalFd(to) || base::tls_internal || InBorrowedMemory()) {
    return false;
  }
  errno = EBUSY;
  return true;
}

// A number at the limit or past it, which may be open: dup2 and dup3 fail, and
// it keeps what it names.
bool PastLimit(int to) {
  return Lookup(to) != nullptr && BeyondLimit(static_cast<rlim_t>(to) + 1);
}

// The rest of accept: the connection is new and ours to follow.
int Accepted(int listener, int fd, const sockaddr_storage& peer,
             socklen_t length, bool nonblock) {
  if (fd < 0) return fd;
  const int saved = errno;
  Evict(fd);
  if (Inet(peer.ss_family) && !InBorrowedMemory()) {
    bool tcp = LookupSock(listener) != nullptr;
    if (!tcp) {
      // A listener that this process was started with.
      tcp = Sock::IsTcp(fd);
    }
    Sock* sock = tcp ? Sock::New(stream::Role::kAcceptor, nonblock) : nullptr;
    if (sock != nullptr) {
      sock->SetPeer(fd, reinterpret_cast<const sockaddr*>(&peer), length);
      if (const Sock* from = LookupSock(listener)) {
        sock->Inherit(*from);
      } else {
        sock->InheritFromUnknown(fd);
      }
      sock->SetEligible(true);
      Bind(fd, sock);
      if (Sock* bound = LookupSock(fd)) bound->SeekIfWorth();
    }
  }
  errno = saved;
  return fd;
}

}  // namespace

int socket(int domain, int type, int protocol) {
  const int fd = real::socket(domain, type, protocol);
  if (fd < 0 || base::tls_internal) return fd;
  Evict(fd);
  if (!Inet(domain) || (type & 0xf) != SOCK_STREAM ||
      (protocol != 0 && protocol != IPPROTO_TCP) || InBorrowedMemory()) {
    return fd;
  }
  if (Sock* sock =
          Sock::New(stream::Role::kConnector, (type & SOCK_NONBLOCK) != 0)) {
    Bind(fd, sock);
  }
  return fd;
}

int listen(int fd, int backlog) {
  const int result = real::listen(fd, backlog);
  if (result == 0) {
    if (Sock* sock = LookupSock(fd)) sock->SetListening(fd);
  }
  return result;
}

int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  int accepted;
  if (address == nullptr) {
    accepted =
        real::accept4(fd, reinterpret_cast<sockaddr*>(&peer), &size, flags);
  } else {
    // The kernel writes there, or says why it can't.
    if (Null(length)) return real::accept4(fd, address, length, flags);
    const socklen_t capacity = *length;
    accepted = real::accept4(fd, address, length, flags);
    if (accepted < 0) return accepted;
    size = *length;
    if (size <= capacity && size <= sizeof peer) {
      std::memcpy(&peer, address, size);
    } else {
      size = sizeof peer;
      ::syscall(SYS_getpeername, accepted, &peer, &size);
    }
  }
  return Accepted(fd, accepted, peer, size, (flags & SOCK_NONBLOCK) != 0);
}

int accept(int fd, sockaddr* address, socklen_t* length) {
  return hook::accept4(fd, address, length, 0);
}

int connect(int fd, const sockaddr* address, socklen_t length) {
  Sock* sock = LookupSock(fd);
  // To no address: the end of a connection, whose descriptor may have another.
  if (sock != nullptr && !Null(address) &&
      length >= static_cast<socklen_t>(sizeof address->sa_family) &&
      address->sa_family == AF_UNSPEC) {
    // (A peer that hangs does not let go of the lane.)
    if (!sock->Pin(base::Reason::kPinnedOption)) {
      errno = EBUSY;
      return -1;
    }
    const int result = real::connect(fd, address, length);
    if (result == 0) sock->Disconnected();
    return result;
  }
  const int result = real::connect(fd, address, length);
  if (sock != nullptr && (result == 0 || errno == EINPROGRESS)) {
    const int saved = errno;
    if (sock->listening.load(std::memory_order_relaxed)) {
      // Until shutdown().  What was asked of it meanwhile, the kernel alone
      // knows.
      sock->listening.store(false, std::memory_order_relaxed);
      sock->Pin(base::Reason::kPinnedOption);
    }
    sock->SetRole(stream::Role::kConnector);
    sock->SetPeer(fd, address, length);
    sock->SetEligible(true);
    if (result == 0) sock->SeekIfWorth();
    errno = saved;
  }
  return result;
}

int shutdown(int fd, int how) {
  Sock* sock = LookupSock(fd);
  return sock == nullptr ? real::shutdown(fd, how) : sock->Shutdown(fd, how);
}

int close(int fd) {
  if (__builtin_expect(base::IsInternalFd(fd), 0)) {
    if (base::tls_internal) {
      base::CloseRaw(fd);
      return 0;
    }
    // (In a child of vfork too: it may have to wake the conductor.)
    errno = EBADF;
    return -1;
  }
  return CloseFd(fd);
}

int close_range(unsigned first, unsigned last, int flags) {
  if (first <= last) flags = BeforeParting(flags, CLOSE_RANGE_UNSHARE);
  if ((flags & CLOSE_RANGE_CLOEXEC) != 0 || first > last) {
    return real::close_range(first, last, flags);
  }
  // A kernel without it, or that does not know the flags, closes nothing.
  // (There is no such number.)
  if (real::close_range(~0u, ~0u, flags & ~CLOSE_RANGE_UNSHARE) != 0) return -1;
  if ((flags & CLOSE_RANGE_UNSHARE) != 0 && !InBorrowedMemory()) {
    // The thread parts from the others, whose numbers these are still.
    if (::syscall(SYS_unshare, CLONE_FILES) != 0) return -1;
    flags = 0;
  } else {
    CloseFollowed(first, last);
  }
  // Around our own.
  constexpr unsigned kHighest = 65536;
  unsigned from = first;
  for (unsigned fd = first; fd <= last && fd < kHighest; ++fd) {
    if (!base::IsInternalFd(static_cast<int>(fd))) continue;
    if (fd > from) real::close_range(from, fd - 1, flags);
    from = fd + 1;
  }
  return from <= last ? real::close_range(from, last, flags) : 0;
}

void closefrom(int first) {
  const int from = first < 0 ? 0 : first;
  if (hook::close_range(static_cast<unsigned>(from), ~0u, 0) == 0) return;
  const long top = std::min<long>(::sysconf(_SC_OPEN_MAX), kMaxFds);
  for (int fd = from; fd < top; ++fd) {
    if (!base::IsInternalFd(fd)) hook::close(fd);
  }
}

// --- Copies

int dup(int fd) {
  const int copy = real::dup(fd);
  if (copy >= 0 && !InBorrowedMemory()) CopyFd(fd, copy);
  return copy;
}

int dup3(int from, int to, int flags) {
  if (from != to && InBorrowedMemory()) Lend(to);
  if (InBorrowedMemory() || from == to || (flags & ~O_CLOEXEC) != 0 ||
      ::syscall(SYS_fcntl, from, F_GETFD) < 0 || PastLimit(to)) {
    return real::dup3(from, to, flags);
  }
  if (RefuseTarget(to)) return -1;
  BeforeStandardNumber(LookupSock(from), to);
  const int copy = CloseFd(to, from, flags);
  if (copy >= 0) CopyFd(from, copy);
  return copy;
}

int dup2(int from, int to) {
  if (from != to && InBorrowedMemory()) Lend(to);
  if (InBorrowedMemory() || from == to ||
      ::syscall(SYS_fcntl, from, F_GETFD) < 0 || PastLimit(to)) {
    return real::dup2(from, to);
  }
  if (RefuseTarget(to)) return -1;
  BeforeStandardNumber(LookupSock(from), to);
  const int copy = CloseFd(to, from);
  if (copy >= 0) CopyFd(from, copy);
  return copy;
}

int Fcntl(int fd, int command, long argument) {
  const int result = RCSOCK_REAL(fcntl)(fd, command, argument);
  if (result < 0 || base::tls_internal) return result;
  switch (command) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
      if (!InBorrowedMemory()) CopyFd(fd, result);
      break;
    case F_SETFL:
      if (Sock* sock = LookupSock(fd)) {
        const int saved = errno;
        sock->nonblock.store((argument & O_NONBLOCK) != 0);
        if (argument & O_ASYNC) sock->Pin(base::Reason::kPinnedOption);
        errno = saved;
      }
      break;
    default:
      break;
  }
  return result;
}

int Ioctl(int fd, unsigned long request, void* argument) {
  Sock* sock = LookupSock(fd);
  if (sock != nullptr && !sock->listening.load(std::memory_order_relaxed)) {
    if (request == FIONREAD && !Null(argument) &&
        sock->ReadableBytes(static_cast<int*>(argument))) {
      return 0;
    }
    if ((request == SIOCOUTQ || request == SIOCOUTQNSD) && !Null(argument) &&
        sock->UnsentBytes(request == SIOCOUTQNSD,
                          static_cast<int*>(argument))) {
      return 0;
    }
  }
  // The kernel's own threads use it from then on.
  if (request == NBD_SET_SOCK) {
    const auto number = reinterpret_cast<std::intptr_t>(argument);
    if (Sock* given = LookupSock(static_cast<int>(number))) {
      given->Pin(base::Reason::kPinnedSyscall);
    }
  }
  const int result = RCSOCK_REAL(ioctl)(fd, request, argument);
  if (sock != nullptr && result == 0) {
    if (request == SIOCATMARK) {
      // What was read ahead lies before it.
      int* const at = static_cast<int*>(argument);
      if (*at != 0 && sock->HasReadAhead()) *at = 0;
    } else if (request == FIONBIO) {
      sock->nonblock.store(*static_cast<int*>(argument) != 0);
    } else if (request == FIOASYNC && *static_cast<int*>(argument) != 0) {
      sock->Pin(base::Reason::kPinnedOption);
    }
  }
  return result;
}

int getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  if (level == IPPROTO_TCP && !Null(length) && static_cast<int>(*length) >= 0) {
    Sock* sock = LookupSock(fd);
    int kept = 0;
    // (Of no bytes it writes none, wherever that is.)
    if (sock != nullptr && (*length == 0 || !Null(value)) &&
        sock->KeptOption(name, &kept)) {
      if (*length > sizeof kept) *length = sizeof kept;
      if (*length > 0) std::memcpy(value, &kept, *length);
      return 0;
    }
    // It receives.
    if (sock != nullptr && name == TCP_ZEROCOPY_RECEIVE) sock->PinByOption();
  }
  const int result = real::getsockopt(fd, level, name, value, length);
  if (result == 0 && level == SOL_SOCKET && name == SO_ERROR) {
    // The kernel's error is of the anchor; the stream may keep one of its own,
    // or the same, and each is told once.
    int error = 0;
    Sock* sock = LookupSock(fd);
    if (sock != nullptr && sock->mode() == Mode::kEngine &&
        *length >= static_cast<socklen_t>(sizeof error)) {
      std::memcpy(&error, value, sizeof error);
      const int own = sock->TakeError();
      if (error == 0) error = own;
      std::memcpy(value, &error, sizeof error);
    }
  }
  return result;
}

int setsockopt(int fd, int level, int name, const void* value,
               socklen_t length) {
  Sock* sock = LookupSock(fd);
  if (sock != nullptr && level == IPPROTO_TCP && !Null(value) &&
      length >= static_cast<socklen_t>(sizeof(int)) &&
      sock->mode() == Mode::kEngine) {
    int number;
    std::memcpy(&number, value, sizeof number);
    if (sock->KeepOption(name, number != 0)) return 0;
  }
  const int result = real::setsockopt(fd, level, name, value, length);
  if (sock == nullptr || result != 0) return result;
  int number = 0;
  if (value != nullptr && length >= static_cast<socklen_t>(sizeof number)) {
    std::memcpy(&number, value, sizeof number);
  }
  if (level == SOL_SOCKET) {
    switch (name) {
      case SO_RCVTIMEO:
      case SO_SNDTIMEO:
        if (length >= static_cast<socklen_t>(sizeof(timeval))) {
          timeval time;
          std::memcpy(&time, value, sizeof time);
          (name == SO_RCVTIMEO ? sock->rcv_timeout_ns : sock->snd_timeout_ns)
              .store(TimeoutNs(time));
        }
        break;
      case SO_RCVLOWAT:
        if (number > 1) sock->PinByOption();
        break;
      case SO_ZEROCOPY:
        sock->SetZeroCopy(number != 0);
        break;
      case SO_TIMESTAMP:
      case SO_TIMESTAMPNS:
        // (Each replaces the other.)
        sock->SetAncillary(Sock::kTellsTime, number != 0);
        break;
      case SO_TIMESTAMPING:
        if (number != 0) sock->PinByOption();
        break;
      case SO_PEEK_OFF:  // -1 is none
        if (number >= 0) sock->PinByOption();
        break;
      default:
        break;
    }
  } else if (level == IPPROTO_TCP && name == TCP_INQ) {
    sock->SetAncillary(Sock::kTellsLeft, number != 0);
  } else if (level == IPPROTO_TCP && (name == TCP_ULP || name == TCP_REPAIR)) {
    sock->PinByOption();
  }
  return result;
}

int eventfd(unsigned initial, int flags) {
  const int fd = real::eventfd(initial, flags);
  if (fd < 0) return fd;
  if (base::tls_internal) return base::RelocateHigh(fd);
  Evict(fd);
  return fd;
}

int timerfd_create(int clock, int flags) {
  const int fd = real::timerfd_create(clock, flags);
  if (fd < 0) return fd;
  if (base::tls_internal) return base::RelocateHigh(fd);
  Evict(fd);
  return fd;
}

// --- stdio

void BeforeStdio(int fd) {
  if (Sock* sock = LookupSock(fd)) sock->Pin(base::Reason::kPinnedFdopen);
}

// It gives the number to another file by a dup3 of its own.
static void BeforeReopening(FILE* file) {
  if (file == nullptr) return;
  const int saved = errno;
  const int fd = ::fileno(file);
  if (LookupSock(fd) != nullptr && !InBorrowedMemory()) {
    // (What it has buffered goes first.)
    ::fflush(file);
    const int none = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (none >= 0) {
      hook::dup2(none, fd);
      ::close(none);
    }
  }
  errno = saved;
}

FILE* freopen(const char* path, const char* mode, FILE* file) {
  BeforeReopening(file);
  return real::freopen(path, mode, file);
}

FILE* freopen64(const char* path, const char* mode, FILE* file) {
  BeforeReopening(file);
  return real::freopen64(path, mode, file);
}

FILE* fdopen(int fd, const char* mode) {
  BeforeStdio(fd);
  return real::fdopen(fd, mode);
}

int vdprintf(int fd, const char* format, va_list arguments) {
  BeforeStdio(fd);
  return real::vdprintf(fd, format, arguments);
}

int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments) {
  BeforeStdio(fd);
  return real::__vdprintf_chk(fd, flag, format, arguments);
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

// --- Processes

namespace {

// Whether the kernel can read what exec is given, as far as it is read here: it
// looks at each page once.
class Probe {
 public:
  bool Readable(const void* at) {
    const auto page = reinterpret_cast<std::uintptr_t>(at) / 4096;
    if (page == seen_) return true;
    // It reads the set first, and then knows no such change of the mask.
    constexpr int kNoSuch = 1000;
    if (::syscall(SYS_rt_sigprocmask, kNoSuch, page * 4096, nullptr, 8) != 0 &&
        errno == EFAULT) {
      return false;
    }
    seen_ = page;
    return true;
  }

 private:
  std::uintptr_t seen_ = 0;
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

// Runs `call` with the environment that the new program is to find.  It returns
// something else than 0 if there is no new program.
template <class Call>
int WithHandover(bool spawn, const Executed& program, char* const environment[],
                 Call&& call) {
  // The kernel refuses it; nothing may have come of it here by then.
  if (!Mapped(program.path, environment)) return call(environment);
  Handover over(spawn, program, environment);
  int result;
  if (!over.Extends()) {
    result = call(environment);
    if (!spawn || result != 0) over.TakeBack();
    return result;
  }
  // On the stack: the caller may be a child of vfork.
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

int _Fork() { return ForkWithoutHandlers(&real::_Fork); }

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

// These two take the environment from the variable, past any argument.
int system(const char* command) {
  if (command == nullptr) return real::system(command);
  const int saved = errno;
  int status = -1;
  char** const own = ProgramEnvironment();
  WithHandover(true, {"sh", "/bin/sh"}, own, [&](char* const* environment) {
    errno = 0;
    status = environment == environ ? real::system(command)
                                    : SystemWith(command, environment);
    // What the command says is not that there was none.
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
    return 0;
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

// (AtExit() is the last of its handlers: InitProcess.)
void quick_exit(int status) { real::quick_exit(status); }

int sigaction(int number, const struct sigaction* action,
              struct sigaction* old) {
  return HookedSigaction(number, action, old);
}

int siginterrupt(int number, int interrupt) {
  return HookedSiginterrupt(number, interrupt != 0);
}

sighandler_t signal(int number, sighandler_t handler) {
  return HookedSignal(number, handler, SA_RESTART);
}

sighandler_t __sysv_signal(int number, sighandler_t handler) {
  return HookedSignal(number, handler,
                      static_cast<int>(SA_RESETHAND | SA_NODEFER));
}

sighandler_t sysv_signal(int number, sighandler_t handler) {
  return hook::__sysv_signal(number, handler);
}

sighandler_t bsd_signal(int number, sighandler_t handler) {
  return hook::signal(number, handler);
}

sighandler_t ssignal(int number, sighandler_t handler) {
  return hook::signal(number, handler);
}

sighandler_t sigset(int number, sighandler_t handler) {
  const bool hold = handler == SIG_HOLD;
  struct sigaction action {};
  if (HookedSigaction(number, nullptr, &action) != 0 ||
      (!hold && HookedSignal(number, handler, 0) == SIG_ERR)) {
    return SIG_ERR;
  }
  sigset_t one;
  sigset_t before;
  ::sigemptyset(&one);
  ::sigaddset(&one, number);
  ::pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &one, &before);
  return ::sigismember(&before, number) == 1 ? SIG_HOLD : action.sa_handler;
}

}  // namespace rcsock::posix::hook
