// poll, select and the epoll family.

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "lib/base/backoff.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/epoll_calls.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/iomux/poll.h"
#include "lib/posix/iomux/unread_wait.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/kernel_hold.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/sys/wait_time.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::hook {
namespace {

// Returns whether a descriptor that is not followed may be an epoll set.  If
// /proc does not say, it may be one.
bool MayBeSet(int fd) {
  const int saved = errno;
  char path[32];
  char what[32] = {};
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
  const bool read = ::readlink(path, what, sizeof what - 1) > 0;
  const bool mounted = read || ::access("/proc/thread-self/fd", F_OK) == 0;
  errno = saved;
  return read ? std::strcmp(what, "anon_inode:[eventpoll]") == 0 : !mounted;
}

// More descriptors than any process may ask for.  The kernel refuses them
// before it looks.
bool TooMany(nfds_t count) {
  constexpr nfds_t kFew = 256;
  return __builtin_expect(count > kFew, 0) &&
         BeyondLimit(static_cast<unsigned>(count));
}

// If the poll asks for room alone, its stream awaits a lane, and the caller can
// wait, holds the poll for a moment.  Returns false if a handler has run.
bool HeldForRoom(const pollfd* fds, nfds_t count, int timeout) {
  constexpr int kOutput = POLLOUT | POLLWRNORM | POLLWRBAND;
  short events;
  if (count != 1 || !base::TryLoad(&fds->events, &events) ||
      (events & kOutput) == 0 || (events & ~kOutput) != 0) {
    return true;
  }
  Sock* const sock = LookupSock(fds->fd);
  return sock == nullptr || !sock->send_gate().AwaitsLane() ||
         sock->send_gate().WaitInPoll(FromMs(timeout));
}

int PollNow(pollfd* fds, nfds_t count, int timeout) {
  // As in the kernel, what is ready is reported, signal or not.
  if (timeout != 0 && !HeldForRoom(fds, count, timeout)) {
    const int n = PollNow(fds, count, 0);
    if (n != 0) return n;
    errno = EINTR;
    return -1;
  }
  if (timeout == 0) {
    if (!PollNeedsEngine(fds, count)) return real::poll(fds, count, timeout);
  } else if (!PollNeedsEngine(fds, count)) {
    KernelHold hold;
    if (hold.EnterAll(fds, count)) return real::poll(fds, count, timeout);
  }
  return EnginePoll(fds, count, FromMs(timeout), nullptr);
}

int PpollNow(pollfd* fds, nfds_t count, const timespec* timeout,
             const sigset_t* mask) {
  if (timeout != nullptr && !Valid(timeout)) {
    return real::ppoll(fds, count, timeout, mask);
  }
  if (!PollNeedsEngine(fds, count)) {
    KernelHold hold;
    if (hold.EnterAll(fds, count)) {
      return real::ppoll(fds, count, timeout, mask);
    }
  }
  return EnginePoll(fds, count, FromSpec(timeout), mask);
}

int SelectNow(int count, fd_set* in, fd_set* out, fd_set* except,
              timeval* timeout) {
  std::int64_t ns = -1;
  if (timeout != nullptr) {
    if (timeout->tv_sec < 0 || timeout->tv_usec < 0) {
      return real::select(count, in, out, except, timeout);
    }
    const timespec spec{timeout->tv_sec + timeout->tv_usec / 1'000'000,
                        static_cast<long>(timeout->tv_usec % 1'000'000) * 1000};
    ns = FromSpec(&spec);
  }
  std::int64_t left = 0;
  int n = EngineSelect(count, in, out, except, ns, nullptr, &left);
  if (n == kNotMine) {
    {
      KernelHold hold;
      if (hold.EnterAll(count, in, out, except)) {
        return real::select(count, in, out, except, timeout);
      }
    }
    // A stream was promoted a moment ago, and may be on TCP again.
    n = EngineSelect(count, in, out, except, ns, nullptr, &left, true);
  }
  if (timeout != nullptr && ns >= 0) {
    timeout->tv_sec = static_cast<time_t>(left / 1'000'000'000);
    timeout->tv_usec = static_cast<suseconds_t>(left % 1'000'000'000 / 1000);
  }
  return n;
}

int PselectNow(int count, fd_set* in, fd_set* out, fd_set* except,
               const timespec* timeout, const sigset_t* mask) {
  if (timeout != nullptr && !Valid(timeout)) {
    return real::pselect(count, in, out, except, timeout, mask);
  }
  int n =
      EngineSelect(count, in, out, except, FromSpec(timeout), mask, nullptr);
  if (n == kNotMine) {
    {
      KernelHold hold;
      if (hold.EnterAll(count, in, out, except)) {
        return real::pselect(count, in, out, except, timeout, mask);
      }
    }
    n = EngineSelect(count, in, out, except, FromSpec(timeout), mask, nullptr,
                     true);
  }
  return n;
}

// Returns whether rcsock cannot read the mask, so that the kernel has to judge
// it.
bool AstrayMask(const sigset_t* mask) {
  constexpr std::size_t kKernels = 8;
  return mask != nullptr && (Null(mask) || !base::Readable(mask, kKernels));
}

}  // namespace

int poll(pollfd* fds, nfds_t count, int timeout) {
  BeforeLooking();
  if (Null(fds) || TooMany(count)) return real::poll(fds, count, timeout);
  if (AnyUnread() && PollFindsUnread(fds, count)) {
    return AddUnread(fds, count, PollNow(fds, count, 0));
  }
  return PollNow(fds, count, timeout);
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
          const sigset_t* mask) {
  BeforeLooking();
  if (Null(fds) || Astray(timeout) || AstrayMask(mask) || TooMany(count)) {
    return real::ppoll(fds, count, timeout, mask);
  }
  // Only calls that have to wait use the mask.
  if (AnyUnread() && PollFindsUnread(fds, count)) {
    return AddUnread(fds, count, PpollNow(fds, count, &kNoTime, nullptr));
  }
  return PpollNow(fds, count, timeout, mask);
}

int select(int count, fd_set* in, fd_set* out, fd_set* except,
           timeval* timeout) {
  BeforeLooking();
  if (Astray(in) || Astray(out) || Astray(except) || Astray(timeout)) {
    return real::select(count, in, out, except, timeout);
  }
  count = SelectEnd(count);
  if (AnyUnread()) {
    SelectUnread unread;
    if (unread.Look(count, in, out)) {
      timeval now{0, 0};
      return unread.Add(in, out, SelectNow(count, in, out, except, &now));
    }
  }
  return SelectNow(count, in, out, except, timeout);
}

int pselect(int count, fd_set* in, fd_set* out, fd_set* except,
            const timespec* timeout, const sigset_t* mask) {
  BeforeLooking();
  if (Astray(in) || Astray(out) || Astray(except) || Astray(timeout) ||
      AstrayMask(mask)) {
    return real::pselect(count, in, out, except, timeout, mask);
  }
  count = SelectEnd(count);
  if (AnyUnread()) {
    SelectUnread unread;
    if (unread.Look(count, in, out)) {
      return unread.Add(in, out,
                        PselectNow(count, in, out, except, &kNoTime, nullptr));
    }
  }
  return PselectNow(count, in, out, except, timeout, mask);
}

int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t size) {
  if (size / sizeof *fds < count) {
    return real::__poll_chk(fds, count, timeout, size);
  }
  return hook::poll(fds, count, timeout);
}

int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                const sigset_t* mask, size_t size) {
  if (size / sizeof *fds < count) {
    return real::__ppoll_chk(fds, count, timeout, mask, size);
  }
  return hook::ppoll(fds, count, timeout, mask);
}

int epoll_create1(int flags) {
  // rcsock's own sets get a high number, and the low number is closed.  The raw
  // call goes past TSan, which would take the number's next owner for a race.
  if (base::tls_internal) {
    return base::OpenHigh([&] { return ::syscall(SYS_epoll_create1, flags); });
  }
  const std::uint32_t copies = TableCopies();
  const int fd = real::epoll_create1(flags);
  if (fd < 0) return fd;
  if (InBorrowedMemory()) return fd;
  Evict(fd);
  BeforeLooking();
  if (EpollSet* set = EpollSet::New(fd, copies)) Bind(fd, set);
  return fd;
}

int epoll_create(int size) {
  if (size <= 0) return real::epoll_create(size);
  return epoll_create1(0);
}

namespace {

// Another epoll set is about to hold this set.
void SeenBySet(EpollSet* set, int op, const epoll_event* event) {
  epoll_event told{};
  if (op == EPOLL_CTL_DEL || Null(event) ||
      !base::TrySmall(&told, event, sizeof told)) {
    return;
  }
  const bool edges = (told.events & static_cast<std::uint32_t>(EPOLLET)) != 0;
  if (!set->SeenFromOutside(edges)) set->SetNested();
  UpdateMirrors();
}

// Returns EpollSet::kStale if the numbers name another stream or set now.
[[gnu::always_inline]] inline int ControlOnce(int number, int op, int fd,
                                              epoll_event* event) {
  EpollSet* set = LookupSet(number);
  File* file = Lookup(fd);
  if (set == nullptr && file != nullptr && file->kind == FileKind::kEpoll &&
      !base::tls_internal) {
    SeenBySet(static_cast<EpollSet*>(file), op, event);
    return real::epoll_ctl(number, op, fd, event);
  }
  if (set == nullptr && file != nullptr && file->kind == FileKind::kSock &&
      !base::tls_internal) {
    // The set may come from another process, for instance.  Only the kernel
    // waits in that set, and the kernel knows nothing of lanes.
    auto* sock = static_cast<Sock*>(file);
    // Pins first.  Otherwise frames would be edges.
    if (op != EPOLL_CTL_DEL && MayBeSet(number) &&
        !sock->listening.load(std::memory_order_relaxed)) {
      sock->way_back().Pin(base::Reason::kPinnedOption);
    }
    return real::epoll_ctl(number, op, fd, event);
  }
  if (set == nullptr || file == nullptr || base::tls_internal) {
    const int result = real::epoll_ctl(number, op, fd, event);
    // The set was made past the hooks, or came with the program.  A thread that
    // waits there sees the kernel's events alone.
    if (result == 0 && op == EPOLL_CTL_ADD && file != nullptr &&
        file->kind == FileKind::kSock && !base::tls_internal) {
      static_cast<Sock*>(file)->way_back().Pin(base::Reason::kRawCalls);
    }
    return result;
  }
  if (file->kind == FileKind::kEpoll) {
    SeenBySet(static_cast<EpollSet*>(file), op, event);
    const int result = real::epoll_ctl(number, op, fd, event);
    return result;
  }
  auto* sock = static_cast<Sock*>(file);
  if (sock->listening.load(std::memory_order_relaxed)) {
    return real::epoll_ctl(number, op, fd, event);
  }
  return set->Ctl(number, op, fd, sock, event);
}

// A stale set or stream means that another thread is closing the set or the
// stream.
[[gnu::noinline]] int LongControl(int number, int op, int fd,
                                  epoll_event* event) {
  for (base::Backoff backoff;; backoff.Wait()) {
    const int result = ControlOnce(number, op, fd, event);
    if (result != EpollSet::kStale) return result;
  }
}

}  // namespace

[[gnu::hot]] int epoll_ctl(int number, int op, int fd, epoll_event* event) {
  return EpollSet::Control(number, op, fd, event, &LongControl);
}

[[gnu::hot]] int epoll_wait(int fd, epoll_event* events, int capacity,
                            int timeout) {
  EpollSet* set = LookupSet(fd);
  if (QuickWaits(set, events, capacity)) {
    return set->QuickWait(fd, events, capacity, timeout);
  }
  return KernelWaits(set, events)
             ? KernelEpoll(fd, events, capacity, timeout, set)
             : LongEpoll(fd, events, capacity, timeout);
}

[[gnu::hot]] int epoll_pwait(int fd, epoll_event* events, int capacity,
                             int timeout, const sigset_t* mask) {
  if (EpollSet* set = mask == nullptr ? LookupSet(fd) : nullptr;
      QuickWaits(set, events, capacity)) {
    return set->QuickWait(fd, events, capacity, timeout);
  }
  if (AstrayMask(mask)) {
    return real::epoll_pwait(fd, events, capacity, timeout, mask);
  }
  return LongEpollPwait(fd, events, capacity, timeout, mask);
}

int epoll_pwait2(int fd, epoll_event* events, int capacity,
                 const timespec* timeout, const sigset_t* mask) {
  if (Astray(timeout) || AstrayMask(mask) ||
      (timeout != nullptr && !base::Readable(timeout, sizeof *timeout))) {
    return real::epoll_pwait2(fd, events, capacity, timeout, mask);
  }
  return LongEpollPwait2(fd, events, capacity, timeout, mask);
}

}  // namespace rcsock::posix::hook
