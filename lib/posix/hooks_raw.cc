#include "lib/posix/hooks_raw.h"

#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/clone.h"
#include "lib/posix/given.h"
#include "lib/posix/hooks.h"
#include "lib/posix/last_thread.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/sock_plain.h"
#include "lib/posix/table.h"
#include "lib/posix/uring.h"
#include "lib/posix/user_arguments.h"

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

// A followed descriptor, or a descriptor of the library's, which is closed to
// the program, however it asks.
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
    if (!hook::Valid(&limit_)) return EINVAL;
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

// Calls on a followed descriptor, the first argument.  False: the call is none
// of these.
// The call's bytes go in or out by a descriptor.  Each of these functions
// returns nothing if it does not know the number.
std::optional<long> MovesBytes(long number, const long (&a)[kArguments]) {
  const int fd = Fd(a[0]);
  switch (number) {
    case SYS_read:
      return hook::read(fd, At<void>(a[1]), Size(a[2]));
    case SYS_write:
      return hook::write(fd, At<void>(a[1]), Size(a[2]));
    case SYS_readv:
      return hook::readv(fd, At<iovec>(a[1]), Fd(a[2]));
    case SYS_writev:
      return hook::writev(fd, At<iovec>(a[1]), Fd(a[2]));
    case SYS_recvfrom:
      return hook::recvfrom(fd, At<void>(a[1]), Size(a[2]), Fd(a[3]),
                            At<sockaddr>(a[4]), At<socklen_t>(a[5]));
    case SYS_sendto:
      return hook::sendto(fd, At<void>(a[1]), Size(a[2]), Fd(a[3]),
                          At<sockaddr>(a[4]), Word(a[5]));
    // The offset comes in two halves.  The upper half means nothing here.
    case SYS_preadv2:
      return hook::preadv2(fd, At<iovec>(a[1]), Fd(a[2]), a[3], Fd(a[5]));
    case SYS_pwritev2:
      return hook::pwritev2(fd, At<iovec>(a[1]), Fd(a[2]), a[3], Fd(a[5]));
    default:
      return std::nullopt;
  }
}

std::optional<long> MovesMessages(long number, const long (&a)[kArguments]) {
  const int fd = Fd(a[0]);
  switch (number) {
    case SYS_recvmsg:
      return hook::recvmsg(fd, At<msghdr>(a[1]), Fd(a[2]));
    case SYS_sendmsg:
      return hook::sendmsg(fd, At<msghdr>(a[1]), Fd(a[2]));
    case SYS_recvmmsg:
      return hook::recvmmsg(fd, At<mmsghdr>(a[1]), Word(a[2]), Fd(a[3]),
                            At<timespec>(a[4]));
    case SYS_sendmmsg:
      return hook::sendmmsg(fd, At<mmsghdr>(a[1]), Word(a[2]), Fd(a[3]));
    default:
      return std::nullopt;
  }
}

std::optional<long> Connects(long number, const long (&a)[kArguments]) {
  const int fd = Fd(a[0]);
  switch (number) {
    case SYS_accept:
      return hook::accept(fd, At<sockaddr>(a[1]), At<socklen_t>(a[2]));
    case SYS_accept4:
      return hook::accept4(fd, At<sockaddr>(a[1]), At<socklen_t>(a[2]),
                           Fd(a[3]));
    case SYS_connect:
      return hook::connect(fd, At<sockaddr>(a[1]), Word(a[2]));
    case SYS_bind:
      return hook::bind(fd, At<sockaddr>(a[1]), Word(a[2]));
    case SYS_listen:
      return hook::listen(fd, Fd(a[1]));
    case SYS_shutdown:
      return hook::shutdown(fd, Fd(a[1]));
    case SYS_getpeername:
      return hook::getpeername(fd, At<sockaddr>(a[1]), At<socklen_t>(a[2]));
    default:
      return std::nullopt;
  }
}

std::optional<long> SetsOptions(long number, const long (&a)[kArguments]) {
  const int fd = Fd(a[0]);
  switch (number) {
    case SYS_dup:
      return hook::dup(fd);
    case SYS_fcntl:
      return hook::Fcntl(fd, Fd(a[1]), a[2]);
    case SYS_ioctl:
      return hook::Ioctl(fd, static_cast<unsigned long>(a[1]), At<void>(a[2]));
    case SYS_getsockopt:
      return hook::getsockopt(fd, Fd(a[1]), Fd(a[2]), At<void>(a[3]),
                              At<socklen_t>(a[4]));
    case SYS_setsockopt:
      return hook::setsockopt(fd, Fd(a[1]), Fd(a[2]), At<void>(a[3]),
                              Word(a[4]));
    default:
      return std::nullopt;
  }
}

std::optional<long> UsesSet(long number, const long (&a)[kArguments]) {
  const int fd = Fd(a[0]);
  switch (number) {
    case SYS_epoll_ctl:
      return hook::epoll_ctl(fd, Fd(a[1]), Fd(a[2]), At<epoll_event>(a[3]));
    case SYS_epoll_wait:
      return hook::epoll_wait(fd, At<epoll_event>(a[1]), Fd(a[2]), Fd(a[3]));
    case SYS_epoll_pwait:
      return EpollPwait(a);
    case SYS_epoll_pwait2:
      return EpollPwait2(a);
    default:
      return std::nullopt;
  }
}

// A call whose first argument is the number of a followed file.
std::optional<long> OnFollowed(long number, const long (&a)[kArguments]) {
  for (const auto group : {MovesBytes, Connects, SetsOptions, UsesSet}) {
    if (const std::optional<long> result = group(number, a)) return result;
  }
  return std::nullopt;
}

// Calls that take a number away, or name two.
template <class Kernel>
std::optional<long> OnNumbers(long number, const long (&a)[kArguments],
                              const Kernel& kernel) {
  switch (number) {
    case SYS_close:
      if (OursToClose(a[0])) return hook::close(Fd(a[0]));
      uring::BeforeClose(Fd(a[0]));
      return kernel();
    case SYS_dup2:
    case SYS_dup3:
      if (!Ours(a[0]) && !OursToClose(a[1])) {
        if (a[0] != a[1]) uring::BeforeClose(Fd(a[1]));
        return kernel();
      }
      return number == SYS_dup2 ? hook::dup2(Fd(a[0]), Fd(a[1]))
                                : hook::dup3(Fd(a[0]), Fd(a[1]), Fd(a[2]));
    case SYS_close_range:
      return hook::close_range(Word(a[0]), Word(a[1]), Fd(a[2]));
    case SYS_sendfile:
      if (!Ours(a[0]) && !Ours(a[1])) return kernel();
      return hook::sendfile64(Fd(a[0]), Fd(a[1]), At<off64_t>(a[2]),
                              Size(a[3]));
    case SYS_splice:
      if (!Ours(a[0]) && !Ours(a[2])) return kernel();
      return hook::splice(Fd(a[0]), At<off64_t>(a[1]), Fd(a[2]),
                          At<off64_t>(a[3]), Size(a[4]), Word(a[5]));
    case SYS_pidfd_getfd: {
      const long fd = kernel();
      const int saved = errno;
      if (fd >= 0) Taken(Fd(fd));
      errno = saved;
      return fd;
    }
    default:
      return std::nullopt;
  }
}

std::optional<long> Waits(long number, const long (&a)[kArguments]) {
  switch (number) {
    case SYS_poll:
      return hook::poll(At<pollfd>(a[0]), static_cast<nfds_t>(a[1]), Fd(a[2]));
    case SYS_ppoll:
      return Ppoll(a);
    case SYS_select:
      return Select(a);
    case SYS_pselect6:
      return Pselect(a);
    default:
      return std::nullopt;
  }
}

// clone3, whose arguments lie in memory.  Returns nothing if the call is the
// kernel's; BeforeClone has been called then.
template <class Kernel>
std::optional<long> Clone3(const long (&a)[kArguments], const Kernel& kernel) {
  std::uint64_t asked[CLONE_ARGS_SIZE_VER0 / sizeof(std::uint64_t)];
  // What is not accessible, or too short, the kernel refuses.
  if (Size(a[1]) < sizeof asked || !Get(a[0], &asked)) return std::nullopt;
  const std::uint64_t flags =
      asked[offsetof(clone_args, flags) / sizeof *asked];
  if (ClonesAsFork(flags) &&
      asked[offsetof(clone_args, stack) / sizeof *asked] == 0) {
    return ForkWithoutHandlers(kernel);
  }
  hook::BeforeClone(flags);
  return std::nullopt;
}

// Calls that make, change or end a process.  Returns nothing where the kernel
// is to go on.
template <class Kernel>
std::optional<long> OnProcess(long number, const long (&a)[kArguments],
                              const Kernel& kernel) {
  switch (number) {
    case SYS_execve:
      return hook::execve(At<char>(a[0]), At<char*>(a[1]), At<char*>(a[2]));
    case SYS_fork:
      return hook::fork();
    case SYS_clone:
      if (ClonesAsFork(static_cast<unsigned long>(a[0])) && a[1] == 0) {
        return ForkWithoutHandlers(kernel);
      }
      hook::BeforeClone(static_cast<unsigned long>(a[0]));
      return std::nullopt;
    case SYS_clone3:
      return Clone3(a, kernel);
    case SYS_exit:
      if (!LastThreadEnds(Fd(a[0]))) return std::nullopt;
      [[fallthrough]];
    case SYS_exit_group:
      hook::_exit(Fd(a[0]));
      return std::nullopt;
    case SYS_prctl:
      BeforePrctl(Fd(a[0]), static_cast<unsigned long>(a[1]),
                  static_cast<unsigned long>(a[2]));
      return std::nullopt;
    case SYS_seccomp:
      // Without a filter the call only asks what the kernel knows.
      if (a[0] == SECCOMP_SET_MODE_STRICT ||
          (a[0] == SECCOMP_SET_MODE_FILTER && a[2] != 0)) {
        EnterSandbox();
      }
      return std::nullopt;
    case SYS_unshare:
      return ::syscall(SYS_unshare, BeforeParting(Fd(a[0]), CLONE_FILES));
    default:
      return std::nullopt;
  }
}

// Calls that hand descriptors to the kernel.  liburing's functions do not come
// here.  Returns nothing where the kernel is to go on.
template <class Kernel>
std::optional<long> HandsToKernel(long number, const long (&a)[kArguments],
                                  const Kernel& kernel) {
  switch (number) {
    case SYS_io_uring_setup: {
      const long fd = kernel();
      if (fd >= 0) uring::AfterSetup(Fd(fd), At<void>(a[1]));
      return fd;
    }
    case SYS_io_uring_enter: {
      uring::Submission seen(Fd(a[0]), Word(a[1]), Word(a[3]));
      return seen.Call(Word(a[2]), At<void>(a[4]), Size(a[5]),
                       [&](unsigned count, unsigned wait, unsigned flags) {
                         return ::syscall(number, a[0], count, wait, flags,
                                          a[4], a[5]);
                       });
    }
    case SYS_io_uring_register:
      uring::BeforeRegister(Fd(a[0]), Word(a[1]));
      if (uring::CancelsByRegister(Fd(a[0]), Word(a[1]), At<void>(a[2]))) {
        return 0;
      }
      return std::nullopt;
    case SYS_io_submit:
      BeforeAio(a[1], At<void*>(a[2]));
      return std::nullopt;
    case SYS_bpf:
      BeforeBpf(a[0], At<void>(a[1]), Size(a[2]));
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

long Syscall(long number, const long (&a)[kArguments]) {
  const auto kernel = [&] {
    return ::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  };
  if (base::tls_internal) return kernel();
  switch (number) {
    case SYS_socket:
      return hook::socket(Fd(a[0]), Fd(a[1]), Fd(a[2]));
    case SYS_epoll_create1:
      return hook::epoll_create1(Fd(a[0]));
    default:
      break;
  }
  // Sockets that are no streams may pass descriptors.
  if (const auto result = MovesMessages(number, a)) return *result;
  if (Ours(a[0])) {
    if (const auto result = OnFollowed(number, a)) return *result;
  }
  if (const auto result = Waits(number, a)) return *result;
  if (const auto result = OnNumbers(number, a, kernel)) return *result;
  if (const auto result = OnProcess(number, a, kernel)) return *result;
  if (const auto result = HandsToKernel(number, a, kernel)) return *result;
  return kernel();
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
      sock->Pin(base::Reason::kPinnedSyscall);
    }
  }
}

}  // namespace rcsock::posix::raw
