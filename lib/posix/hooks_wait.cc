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
#include "lib/base/clock.h"
#include "lib/base/direct.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/epoll.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/hooks.h"
#include "lib/posix/kernel_hold.h"
#include "lib/posix/lookup.h"
#include "lib/posix/poll.h"
#include "lib/posix/process.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/unread_wait.h"

namespace rcsock::posix::hook {
namespace {

std::int64_t FromMs(int timeout) {
  return timeout < 0 ? -1 : static_cast<std::int64_t>(timeout) * 1'000'000;
}

// Whether a descriptor that is not followed may be an epoll set.  If /proc says
// nothing, it may.
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

std::int64_t FromSpec(const timespec* timeout) {
  if (timeout == nullptr) return -1;
  // A century is for ever.
  if (timeout->tv_sec > 3'000'000'000) return -1;
  return static_cast<std::int64_t>(timeout->tv_sec) * 1'000'000'000 +
         timeout->tv_nsec;
}

// The rest of a wait in the kernel's part of a set that has, or has had,
// streams on lanes.  The wait began when moves() was `moves`.  `n` is the
// kernel's result, or kOnlyBell if the kernel was not asked. left() returns
// what is left of the time.
template <class Left>
[[gnu::noinline]] int AfterKernel(EpollSet::Leave* leave, EpollSet* set,
                                  epoll_event* events, int capacity,
                                  const sigset_t* mask, int n,
                                  std::uint32_t moves, Left&& left) {
  if (n != EpollSet::kOnlyBell) {
    n = set->OfKernel(events, n, moves, &leave->unlooked);
    if (n != EpollSet::kOnlyBell) return n;
  }
  return set->Wait(leave, events, capacity, left(), mask);
}

// Waits on a set.  `wait()` is the kernel's wait, for a set without a stream on
// a lane; a stream may come meanwhile.
template <class Wait>
int WaitOn(int fd, epoll_event* events, int capacity, std::int64_t timeout_ns,
           const sigset_t* mask, EpollSet* set, Wait&& wait) {
  EpollSet::Leave leave(set);
  if (set->HasUser()) {
    if (!leave.Right(fd)) return EpollSet::kStale;
    return set->Wait(&leave, events, capacity, timeout_ns, mask);
  }
  UpdateMirrors();
  const std::uint64_t start = timeout_ns > 0 ? base::NowNs() : 0;
  const std::uint32_t moves = set->moves();
  leave.Ask();
  int n = EpollSet::kOnlyBell;
  {
    const EpollSet::Stranger stranger(set);
    if (!leave.Right(fd)) return EpollSet::kStale;
    if (stranger.MaySleep()) n = wait();
  }
  if (n == -1 || n == 0 || (n > 0 && !set->EverUser())) return n;
  return AfterKernel(&leave, set, events, capacity, mask, n, moves, [&] {
    if (timeout_ns <= 0) return timeout_ns;
    const auto spent = static_cast<std::int64_t>(base::NowNs() - start);
    return timeout_ns > spent ? timeout_ns - spent : 0;
  });
}

// More descriptors than any process may ask for.  The kernel refuses them
// before it looks.
bool TooMany(nfds_t count) {
  constexpr nfds_t kFew = 256;
  return __builtin_expect(count > kFew, 0) &&
         BeyondLimit(static_cast<unsigned>(count));
}

// Holds a poll that asks for room alone for a moment, if its stream awaits a
// lane and the caller can wait.  False: a handler has run.
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
    // A stream was promoted a moment ago, and may be back by now.
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

// WaitOn for what the number names, if it still does so when the wait begins.
template <class Wait>
int WaitAt(int fd, epoll_event* events, int capacity, std::int64_t timeout_ns,
           const sigset_t* mask, Wait&& wait) {
  for (;;) {
    EpollSet* const set = LookupSet(fd);
    if (set == nullptr) return wait();
    const int n = WaitOn(fd, events, capacity, timeout_ns, mask, set, wait);
    if (n != EpollSet::kStale) return n;
  }
}

int EpollNow(int fd, epoll_event* events, int capacity, int timeout) {
  return WaitAt(fd, events, capacity, FromMs(timeout), nullptr, [&] {
    return direct::epoll_wait(fd, events, capacity, timeout);
  });
}

int EpollPwaitNow(int fd, epoll_event* events, int capacity, int timeout,
                  const sigset_t* mask) {
  return WaitAt(fd, events, capacity, FromMs(timeout), mask, [&] {
    return real::epoll_pwait(fd, events, capacity, timeout, mask);
  });
}

int EpollPwait2Now(int fd, epoll_event* events, int capacity,
                   const timespec* timeout, const sigset_t* mask) {
  if (timeout != nullptr && !Valid(timeout)) {
    return real::epoll_pwait2(fd, events, capacity, timeout, mask);
  }
  return WaitAt(fd, events, capacity, FromSpec(timeout), mask, [&] {
    return real::epoll_pwait2(fd, events, capacity, timeout, mask);
  });
}

// Whether rcsock cannot read the mask, and the kernel has to judge it.
bool AstrayMask(const sigset_t* mask) {
  constexpr std::size_t kKernels = 8;
  return mask != nullptr && (Null(mask) || !base::Readable(mask, kKernels));
}

constexpr timespec kNoTime{0, 0};

// `wait(events, capacity, now)` is the call itself.
template <class Wait>
int WithUnread(int fd, epoll_event* events, int capacity, Wait&& wait) {
  if (Null(events)) [[unlikely]] {
    // The kernel finds an inaccessible array when it has something to store;
    // for an address in its own half, at once.  A bell is nothing.
    const bool half = reinterpret_cast<std::intptr_t>(events) < 0;
    if (half || LookupSet(fd) == nullptr || !EpollSet::MayHold(capacity)) {
      return wait(events, capacity, false);
    }
    epoll_event unseen;
    const int n = wait(&unseen, 1, false);
    if (n <= 0) return n;
    errno = EFAULT;
    return -1;
  }
  if (!AnyUnread()) return wait(events, capacity, false);
  EpollSet* set = LookupSet(fd);
  // A level-triggered registration has something at each call.  So once such
  // registrations have filled the room, the rest of the set is asked first.
  static thread_local bool rest_first = false;
  if (rest_first) {
    rest_first = false;
    const int rest = wait(events, capacity, true);
    if (rest != 0) return rest;
  }
  const int found =
      set != nullptr ? EpollFindsUnread(set, events, capacity) : 0;
  rest_first = found > 0 && found == capacity;
  if (found == 0) {
    if (NowhereToTell(events)) [[unlikely]] {
      errno = EFAULT;
      return -1;
    }
    return wait(events, capacity, false);
  }
  const int more =
      found < capacity ? wait(events + found, capacity - found, true) : 0;
  return MergeEvents(events, found, more > 0 ? more : 0);
}

bool QuickWaits(const EpollSet* set, const epoll_event* events, int capacity) {
  return set != nullptr && set->HasUser() && EpollSet::MayHold(capacity) &&
         !Null(events) && !AnyUnread();
}

// Whether a set has no stream on a lane.  The kernel waits, unless a stream
// comes meanwhile.
bool KernelWaits(const EpollSet* set, const epoll_event* events) {
  return set != nullptr && !set->HasUser() && !Null(events) && !AnyUnread();
}

// As WaitOn, without a mask.
[[gnu::noinline, gnu::hot]] int KernelEpoll(int fd, epoll_event* events,
                                            int capacity, int timeout,
                                            EpollSet* set) {
  UpdateMirrors();
  const std::uint64_t start = timeout > 0 ? base::Ticks() : 0;
  const std::uint32_t moves = set->moves();
  EpollSet::Leave leave(set);
  leave.Ask();
  int n = EpollSet::kOnlyBell;
  {
    const EpollSet::Stranger stranger(set);
    if (!leave.Right(fd)) [[unlikely]]
      n = EpollSet::kStale;
    else if (stranger.MaySleep()) [[likely]]
      n = direct::epoll_wait(fd, events, capacity, timeout);
  }
  if (n == EpollSet::kStale) [[unlikely]]
    return LongEpoll(fd, events, capacity, timeout);
  if (n == -1 || n == 0 || (n > 0 && !set->EverUser())) [[likely]]
    return n;
  return AfterKernel(&leave, set, events, capacity, nullptr, n, moves, [&] {
    if (timeout <= 0) return FromMs(timeout);
    // Where there is a lane, the clock's rate is known.
    const std::uint64_t spent =
        (base::Ticks() - start) / base::ticks_per_us / 1000;
    return spent < static_cast<std::uint64_t>(timeout)
               ? FromMs(timeout - static_cast<int>(spent))
               : 0;
  });
}

}  // namespace

// Not in line: the short way would save registers for it.
[[gnu::noinline]] int LongEpoll(int fd, epoll_event* events, int capacity,
                                int timeout) {
  return WithUnread(fd, events, capacity,
                    [&](epoll_event* to, int room, bool now) {
                      return EpollNow(fd, to, room, now ? 0 : timeout);
                    });
}

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
  // The mask is for calls that have to wait.
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
  const int fd = real::epoll_create1(flags);
  if (fd < 0) return fd;
  if (InBorrowedMemory()) return fd;
  Evict(fd);
  BeforeLooking();
  if (EpollSet* set = EpollSet::New(fd)) Bind(fd, set);
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

// Returns EpollSet::kStale if the stream or the set is another by now.
int ControlOnce(int number, int op, int fd, epoll_event* event) {
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
    // waits there, and it knows nothing of lanes.
    auto* sock = static_cast<Sock*>(file);
    // Pins first.  Otherwise frames would be edges.
    if (op != EPOLL_CTL_DEL && MayBeSet(number) &&
        !sock->listening.load(std::memory_order_relaxed)) {
      sock->Pin(base::Reason::kPinnedOption);
    }
    return real::epoll_ctl(number, op, fd, event);
  }
  if (set == nullptr || file == nullptr || base::tls_internal) {
    const int result = real::epoll_ctl(number, op, fd, event);
    // The set was made past the hooks, or came with the program.  A thread that
    // waits there sees the kernel's events alone.
    if (result == 0 && op == EPOLL_CTL_ADD && file != nullptr &&
        file->kind == FileKind::kSock && !base::tls_internal) {
      static_cast<Sock*>(file)->Pin(base::Reason::kRawCalls);
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

}  // namespace

int epoll_ctl(int number, int op, int fd, epoll_event* event) {
  // A stale set or stream means that another thread closes it at this moment.
  for (base::Backoff backoff;; backoff.Wait()) {
    const int result = ControlOnce(number, op, fd, event);
    if (result != EpollSet::kStale) return result;
  }
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
  return WithUnread(
      fd, events, capacity, [&](epoll_event* to, int room, bool now) {
        return EpollPwaitNow(fd, to, room, now ? 0 : timeout, mask);
      });
}

int epoll_pwait2(int fd, epoll_event* events, int capacity,
                 const timespec* timeout, const sigset_t* mask) {
  if (Astray(timeout) || AstrayMask(mask) ||
      (timeout != nullptr && !base::Readable(timeout, sizeof *timeout))) {
    return real::epoll_pwait2(fd, events, capacity, timeout, mask);
  }
  return WithUnread(
      fd, events, capacity, [&](epoll_event* to, int room, bool now) {
        return EpollPwait2Now(fd, to, room, now ? &kNoTime : timeout, mask);
      });
}

}  // namespace rcsock::posix::hook
