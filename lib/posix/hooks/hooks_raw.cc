#include "lib/posix/hooks/hooks_raw.h"

#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/hooks/given.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/uring.h"
#include "lib/posix/lifecycle/clone.h"
#include "lib/posix/lifecycle/last_thread.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/sys/wait_time.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::raw {
namespace {

template <class T>
T* At(long argument) {
  return reinterpret_cast<T*>(argument);
}
int Fd(long argument) { return static_cast<int>(argument); }
unsigned Word(long argument) { return static_cast<unsigned>(argument); }
std::size_t Size(long argument) { return static_cast<std::size_t>(argument); }

bool Ours(long argument) { return Lookup(Fd(argument)) != nullptr; }

// Returns whether rcsock follows the descriptor, or the descriptor is the
// library's own.  The latter is closed to the program, however it asks.
bool OursToClose(long argument) {
  return Ours(argument) || base::IsInternalFd(Fd(argument));
}

// A connection of this process has a new number, which no table knows.
void Taken(int fd) {
  struct stat what {};
  if (::fstat(fd, &what) != 0 || !S_ISSOCK(what.st_mode)) return;
  PinBySocket(what.st_ino, base::Reason::kPinnedScmRights);
}

long Refused(int error) {
  errno = error;
  return -1;
}

// Reads what a raw call points to, as the kernel reads it.  False: EFAULT.
template <class T>
bool Get(long argument, T* to) {
  BeforeLooking();
  return !Null(At<void>(argument)) &&
         base::TryGet(to, At<void>(argument), sizeof *to);
}

// The signal mask of a raw call.
class Mask {
 public:
  // Returns 0, or the kernel's error.
  int Read(long at, long size) {
    if (at == 0) return 0;
    std::uint64_t kernels;
    if (Size(size) != sizeof kernels) return EINVAL;
    if (!Get(at, &kernels)) return EFAULT;
    ::sigemptyset(&mask_);
    std::memcpy(&mask_, &kernels, sizeof kernels);
    there_ = true;
    return 0;
  }
  const sigset_t* get() const { return there_ ? &mask_ : nullptr; }

 private:
  sigset_t mask_;
  bool there_ = false;
};

// The time-out of a raw call, which the kernel overwrites with what is left.
class TimeLeft {
 public:
  // Returns 0, or the kernel's error.
  int Read(long at) {
    if (at == 0) return 0;
    if (!Get(at, &limit_)) return EFAULT;
    if (!Valid(&limit_)) return EINVAL;
    at_ = At<timespec>(at);
    start_ = base::NowNs();
    return 0;
  }
  const timespec* get() const { return at_ != nullptr ? &limit_ : nullptr; }
  // If the time cannot be written, the kernel leaves it as it is.
  long Write(long result) const {
    if (at_ == nullptr || (limit_.tv_sec == 0 && limit_.tv_nsec == 0)) {
      return result;
    }
    constexpr std::uint64_t kSecond = 1'000'000'000;
    const std::uint64_t spent = base::NowNs() - start_;
    timespec left{limit_.tv_sec - static_cast<time_t>(spent / kSecond),
                  limit_.tv_nsec - static_cast<long>(spent % kSecond)};
    if (left.tv_nsec < 0) {
      left.tv_nsec += kSecond;
      --left.tv_sec;
    }
    if (left.tv_sec < 0) left = {0, 0};
    base::TryPut(at_, &left, sizeof left);
    return result;
  }

 private:
  timespec limit_;
  timespec* at_ = nullptr;
  std::uint64_t start_ = 0;
};

long Ppoll(const long (&a)[kArguments]) {
  TimeLeft time;
  if (const int error = time.Read(a[2])) return Refused(error);
  Mask mask;
  if (const int error = mask.Read(a[3], a[4])) return Refused(error);
  return time.Write(hook::ppoll(At<pollfd>(a[0]), static_cast<nfds_t>(a[1]),
                                time.get(), mask.get()));
}

long Select(const long (&a)[kArguments]) {
  timeval limit;
  if (a[4] != 0 && !Get(a[4], &limit)) return Refused(EFAULT);
  const long result =
      hook::select(Fd(a[0]), At<fd_set>(a[1]), At<fd_set>(a[2]),
                   At<fd_set>(a[3]), a[4] != 0 ? &limit : nullptr);
  if (a[4] != 0) base::TryPut(At<void>(a[4]), &limit, sizeof limit);
  return result;
}

long Pselect(const long (&a)[kArguments]) {
  // The kernel takes six arguments at most.  The last points to two.
  long masks[2] = {0, 0};
  if (a[5] != 0 && !Get(a[5], &masks)) return Refused(EFAULT);
  TimeLeft time;
  if (const int error = time.Read(a[4])) return Refused(error);
  Mask mask;
  if (const int error = mask.Read(masks[0], masks[1])) return Refused(error);
  return time.Write(hook::pselect(Fd(a[0]), At<fd_set>(a[1]), At<fd_set>(a[2]),
                                  At<fd_set>(a[3]), time.get(), mask.get()));
}

long EpollPwait(const long (&a)[kArguments]) {
  Mask mask;
  if (const int error = mask.Read(a[4], a[5])) return Refused(error);
  return hook::epoll_pwait(Fd(a[0]), At<epoll_event>(a[1]), Fd(a[2]), Fd(a[3]),
                           mask.get());
}

// Here the kernel does not report what is left of the time.
long EpollPwait2(const long (&a)[kArguments]) {
  TimeLeft time;
  if (const int error = time.Read(a[3])) return Refused(error);
  Mask mask;
  if (const int error = mask.Read(a[4], a[5])) return Refused(error);
  return hook::epoll_pwait2(Fd(a[0]), At<epoll_event>(a[1]), Fd(a[2]),
                            time.get(), mask.get());
}

using Arguments = const long (&)[kArguments];

long Kernel(long number, Arguments a) {
  return ::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// --- Calls of several steps

// dup2 and dup3.
long Dup(long number, Arguments a) {
  if (!Ours(a[0]) && !OursToClose(a[1])) {
    if (a[0] != a[1]) BeforeClose(Fd(a[1]));
    return Kernel(number, a);
  }
  return number == SYS_dup2 ? hook::dup2(Fd(a[0]), Fd(a[1]))
                            : hook::dup3(Fd(a[0]), Fd(a[1]), Fd(a[2]));
}

long Close(long number, Arguments a) {
  if (OursToClose(a[0])) return hook::close(Fd(a[0]));
  BeforeClose(Fd(a[0]));
  return Kernel(number, a);
}

long PidfdGetfd(long number, Arguments a) {
  const long fd = Kernel(number, a);
  const int saved = errno;
  if (fd >= 0) {
    CountTableCopy();  // it may be of this process, and of any kind
    Taken(Fd(fd));
  }
  errno = saved;
  return fd;
}

// clone and clone3: `flags`, and the child's stack.
long Clone(long number, Arguments a, std::uint64_t flags, std::uint64_t stack) {
  if (ClonesAsFork(flags) && stack == 0) {
    return ForkWithoutHandlers([&] { return Kernel(number, a); });
  }
  hook::BeforeClone(flags);
  return Kernel(number, a);
}

long Clone3(long number, Arguments a) {
  std::uint64_t asked[CLONE_ARGS_SIZE_VER0 / sizeof(std::uint64_t)];
  // The kernel refuses what is not accessible, or too short.
  if (Size(a[1]) < sizeof asked || !Get(a[0], &asked)) return Kernel(number, a);
  return Clone(number, a, asked[offsetof(clone_args, flags) / sizeof *asked],
               asked[offsetof(clone_args, stack) / sizeof *asked]);
}

long Seccomp(long number, Arguments a) {
  // Without a filter the call only asks what the kernel knows.
  if (a[0] == SECCOMP_SET_MODE_STRICT ||
      (a[0] == SECCOMP_SET_MODE_FILTER && a[2] != 0)) {
    EnterSandbox();
  }
  return Kernel(number, a);
}

long RingSetup(long number, Arguments a) {
  const long fd = Kernel(number, a);
  if (fd >= 0) uring::AfterSetup(Fd(fd), At<void>(a[1]));
  return fd;
}

long RingEnter(long number, Arguments a) {
  uring::Submission seen(Fd(a[0]), Word(a[1]), Word(a[3]));
  return seen.Call(Word(a[2]), At<void>(a[4]), Size(a[5]),
                   [&](unsigned count, unsigned wait, unsigned flags) {
                     return ::syscall(number, a[0], count, wait, flags, a[4],
                                      a[5]);
                   });
}

long RingRegister(long number, Arguments a) {
  uring::BeforeRegister(Fd(a[0]), Word(a[1]));
  if (uring::CancelsByRegister(Fd(a[0]), Word(a[1]), At<void>(a[2]))) return 0;
  return Kernel(number, a);
}

// --- Every call that is not the kernel's alone

enum class If : std::uint8_t {
  kAlways,
  kFollowed,  // the first argument names a file that rcsock follows
};

struct Entry {
  long number;
  If when;
  long (*call)(long number, Arguments a);
};

constexpr Entry kEntries[] = {
    // Bytes.  The offset of preadv2 and pwritev2 comes in two halves, of which
    // the
    // upper one means nothing here.
    {SYS_read, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::read(Fd(a[0]), At<void>(a[1]), Size(a[2]));
     }},
    {SYS_write, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::write(Fd(a[0]), At<void>(a[1]), Size(a[2]));
     }},
    {SYS_readv, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::readv(Fd(a[0]), At<iovec>(a[1]), Fd(a[2]));
     }},
    {SYS_writev, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::writev(Fd(a[0]), At<iovec>(a[1]), Fd(a[2]));
     }},
    {SYS_preadv2, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::preadv2(Fd(a[0]), At<iovec>(a[1]), Fd(a[2]), a[3],
                            Fd(a[5]));
     }},
    {SYS_pwritev2, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::pwritev2(Fd(a[0]), At<iovec>(a[1]), Fd(a[2]), a[3],
                             Fd(a[5]));
     }},
    {SYS_recvfrom, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::recvfrom(Fd(a[0]), At<void>(a[1]), Size(a[2]), Fd(a[3]),
                             At<sockaddr>(a[4]), At<socklen_t>(a[5]));
     }},
    {SYS_sendto, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::sendto(Fd(a[0]), At<void>(a[1]), Size(a[2]), Fd(a[3]),
                           At<sockaddr>(a[4]), Word(a[5]));
     }},
    // Messages.  Sockets that are no streams may pass descriptors.
    {SYS_recvmsg, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::recvmsg(Fd(a[0]), At<msghdr>(a[1]), Fd(a[2]));
     }},
    {SYS_sendmsg, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::sendmsg(Fd(a[0]), At<msghdr>(a[1]), Fd(a[2]));
     }},
    {SYS_recvmmsg, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::recvmmsg(Fd(a[0]), At<mmsghdr>(a[1]), Word(a[2]), Fd(a[3]),
                             At<timespec>(a[4]));
     }},
    {SYS_sendmmsg, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::sendmmsg(Fd(a[0]), At<mmsghdr>(a[1]), Word(a[2]), Fd(a[3]));
     }},
    // Connections.
    {SYS_socket, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::socket(Fd(a[0]), Fd(a[1]), Fd(a[2]));
     }},
    {SYS_accept, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::accept(Fd(a[0]), At<sockaddr>(a[1]), At<socklen_t>(a[2]));
     }},
    {SYS_accept4, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::accept4(Fd(a[0]), At<sockaddr>(a[1]), At<socklen_t>(a[2]),
                            Fd(a[3]));
     }},
    {SYS_connect, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::connect(Fd(a[0]), At<sockaddr>(a[1]), Word(a[2]));
     }},
    {SYS_bind, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::bind(Fd(a[0]), At<sockaddr>(a[1]), Word(a[2]));
     }},
    {SYS_listen, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::listen(Fd(a[0]), Fd(a[1]));
     }},
    {SYS_shutdown, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::shutdown(Fd(a[0]), Fd(a[1]));
     }},
    {SYS_getpeername, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::getpeername(Fd(a[0]), At<sockaddr>(a[1]),
                                At<socklen_t>(a[2]));
     }},
    // Options.
    {SYS_fcntl, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::Fcntl(Fd(a[0]), Fd(a[1]), a[2]);
     }},
    {SYS_ioctl, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::Ioctl(Fd(a[0]), static_cast<unsigned long>(a[1]),
                          At<void>(a[2]));
     }},
    {SYS_getsockopt, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::getsockopt(Fd(a[0]), Fd(a[1]), Fd(a[2]), At<void>(a[3]),
                               At<socklen_t>(a[4]));
     }},
    {SYS_setsockopt, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::setsockopt(Fd(a[0]), Fd(a[1]), Fd(a[2]), At<void>(a[3]),
                               Word(a[4]));
     }},
    // Waits.
    {SYS_epoll_create1, If::kAlways,
     [](long, Arguments a) -> long { return hook::epoll_create1(Fd(a[0])); }},
    {SYS_epoll_ctl, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::epoll_ctl(Fd(a[0]), Fd(a[1]), Fd(a[2]),
                              At<epoll_event>(a[3]));
     }},
    {SYS_epoll_wait, If::kFollowed,
     [](long, Arguments a) -> long {
       return hook::epoll_wait(Fd(a[0]), At<epoll_event>(a[1]), Fd(a[2]),
                               Fd(a[3]));
     }},
    {SYS_epoll_pwait, If::kFollowed,
     [](long, Arguments a) -> long { return EpollPwait(a); }},
    {SYS_epoll_pwait2, If::kFollowed,
     [](long, Arguments a) -> long { return EpollPwait2(a); }},
    {SYS_poll, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::poll(At<pollfd>(a[0]), static_cast<nfds_t>(a[1]), Fd(a[2]));
     }},
    {SYS_ppoll, If::kAlways,
     [](long, Arguments a) -> long { return Ppoll(a); }},
    {SYS_select, If::kAlways,
     [](long, Arguments a) -> long { return Select(a); }},
    {SYS_pselect6, If::kAlways,
     [](long, Arguments a) -> long { return Pselect(a); }},
    // Numbers, and calls that name two.
    {SYS_close, If::kAlways, Close},
    {SYS_dup, If::kFollowed,
     [](long, Arguments a) -> long { return hook::dup(Fd(a[0])); }},
    {SYS_dup2, If::kAlways, Dup},
    {SYS_dup3, If::kAlways, Dup},
    {SYS_close_range, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::close_range(Word(a[0]), Word(a[1]), Fd(a[2]));
     }},
    {SYS_pidfd_getfd, If::kAlways, PidfdGetfd},
    {SYS_sendfile, If::kAlways,
     [](long number, Arguments a) -> long {
       if (!Ours(a[0]) && !Ours(a[1])) return Kernel(number, a);
       return hook::sendfile64(Fd(a[0]), Fd(a[1]), At<off64_t>(a[2]),
                               Size(a[3]));
     }},
    {SYS_splice, If::kAlways,
     [](long number, Arguments a) -> long {
       if (!Ours(a[0]) && !Ours(a[2])) return Kernel(number, a);
       return hook::splice(Fd(a[0]), At<off64_t>(a[1]), Fd(a[2]),
                           At<off64_t>(a[3]), Size(a[4]), Word(a[5]));
     }},
    // Processes.
    {SYS_execve, If::kAlways,
     [](long, Arguments a) -> long {
       return hook::execve(At<char>(a[0]), At<char*>(a[1]), At<char*>(a[2]));
     }},
    {SYS_fork, If::kAlways,
     [](long, Arguments) -> long { return hook::fork(); }},
    {SYS_vfork, If::kAlways,
     [](long number, Arguments a) -> long {
       LendMemoryForGood();
       return Kernel(number, a);
     }},
    {SYS_clone, If::kAlways,
     [](long number, Arguments a) -> long {
       return Clone(number, a, static_cast<std::uint64_t>(a[0]),
                    static_cast<std::uint64_t>(a[1]));
     }},
    {SYS_clone3, If::kAlways, Clone3},
    {SYS_exit, If::kAlways,
     [](long number, Arguments a) -> long {
       if (LastThreadEnds(Fd(a[0]))) hook::_exit(Fd(a[0]));
       return Kernel(number, a);
     }},
    {SYS_exit_group, If::kAlways,
     [](long number, Arguments a) -> long {
       hook::_exit(Fd(a[0]));
       return Kernel(number, a);
     }},
    {SYS_prctl, If::kAlways,
     [](long number, Arguments a) -> long {
       BeforePrctl(Fd(a[0]), static_cast<unsigned long>(a[1]),
                   static_cast<unsigned long>(a[2]));
       return Kernel(number, a);
     }},
    {SYS_seccomp, If::kAlways, Seccomp},
    {SYS_unshare, If::kAlways,
     [](long number, Arguments a) -> long {
       return ::syscall(number, BeforeParting(Fd(a[0]), CLONE_FILES));
     }},
    // What hands descriptors to the kernel.  liburing's functions do not come
    // here.
    {SYS_io_uring_setup, If::kAlways, RingSetup},
    {SYS_io_uring_enter, If::kAlways, RingEnter},
    {SYS_io_uring_register, If::kAlways, RingRegister},
    {SYS_io_submit, If::kAlways,
     [](long number, Arguments a) -> long {
       BeforeAio(a[1], At<void*>(a[2]));
       return Kernel(number, a);
     }},
    {SYS_bpf, If::kAlways,
     [](long number, Arguments a) -> long {
       BeforeBpf(a[0], At<void>(a[1]), Size(a[2]));
       return Kernel(number, a);
     }},
};

// The place of each call's entry, behind a 0 for none.
constexpr auto kPlaces = [] {
  std::array<std::uint8_t, 512> places{};
  std::uint8_t place = 0;
  for (const Entry& entry : kEntries) {
    places[static_cast<std::size_t>(entry.number)] = ++place;
  }
  return places;
}();

}  // namespace

long Syscall(long number, const long (&a)[kArguments]) {
  if (base::tls_internal ||
      static_cast<unsigned long>(number) >= kPlaces.size())
    return Kernel(number, a);
  const std::uint8_t place = kPlaces[static_cast<std::size_t>(number)];
  if (place == 0) return Kernel(number, a);
  const Entry& entry = kEntries[place - 1];
  if (entry.when == If::kFollowed && !Ours(a[0])) return Kernel(number, a);
  return entry.call(number, a);
}

void BeforeAio(long count, void** blocks) {
  if (count <= 0 || Null(blocks)) return;
  BeforeLooking();
  for (long i = 0; i < count; ++i) {
    // The kernel reports that.
    void* block;
    std::uint32_t number;
    if (!base::TryLoad(&blocks[i], &block) || Null(block) ||
        !base::TryLoad(&static_cast<const iocb*>(block)->aio_fildes, &number)) {
      return;
    }
    if (const SockAt sock(static_cast<int>(number)); sock) {
      sock->way_back().Pin(base::Reason::kPinnedSyscall);
    }
  }
}

}  // namespace rcsock::posix::raw
