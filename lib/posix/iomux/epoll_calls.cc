#include "lib/posix/iomux/epoll_calls.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/alone.h"
#include "lib/base/clock.h"
#include "lib/base/direct.h"
#include "lib/base/real.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/iomux/unread_wait.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/sys/wait_time.h"

namespace rcsock::posix {
namespace {

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

// The rest of a lone thread's wait, in which a handler has brought the set's
// first stream to a lane.  So the wait may end as one that a handler has
// interrupted.
[[gnu::cold, gnu::noinline]] int AfterLoneWait(EpollSet* set,
                                               epoll_event* events, int n,
                                               std::uint32_t moves) {
  {
    EpollSet::Leave leave(set);
    n = set->OfKernel(events, n, moves, &leave.unlooked);
  }
  if (n != EpollSet::kOnlyBell) return n;
  errno = EINTR;
  return -1;
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

// WaitOn for the set that the number names, if it still names that set when the
// wait begins.
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

// `wait(events, capacity, now)` is the call itself.
template <class Wait>
int WithUnread(int fd, epoll_event* events, int capacity, Wait&& wait) {
  if (Null(events)) [[unlikely]] {
    // The kernel finds an inaccessible array when it has something to store.
    // An address in the kernel's own half is found at once.  A bell is nothing
    // to store.
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
  // A level-triggered registration with unread bytes has something at each
  // call.  So once such registrations have filled the room, the rest of the set
  // is asked first.
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

}  // namespace

// As WaitOn, without a mask.
static int CountedEpoll(int fd, epoll_event* events, int capacity, int timeout,
                        EpollSet* set);

// Has nothing to unwind, see direct::InLine.
[[gnu::noinline, gnu::hot]] int KernelEpoll(int fd, epoll_event* events,
                                            int capacity, int timeout,
                                            EpollSet* set) {
  UpdateMirrors();
  if (!(base::Lone() && !set->EverUser() && set->IsAt(fd))) {
    return CountedEpoll(fd, events, capacity, timeout, set);
  }
  // No other thread brings a stream to a lane, or closes the set, so the wait
  // counts itself for nobody.
  const std::uint32_t moves = set->moves();
  const int n = direct::EpollWaitInLine(fd, events, capacity, timeout);
  return n > 0 && set->EverUser() ? AfterLoneWait(set, events, n, moves) : n;
}

[[gnu::noinline, gnu::hot]] static int CountedEpoll(int fd, epoll_event* events,
                                                    int capacity, int timeout,
                                                    EpollSet* set) {
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
    // A set that had a lane knows the clock's rate.
    const std::uint64_t spent =
        (base::Ticks() - start) / base::ticks_per_us / 1000;
    return spent < static_cast<std::uint64_t>(timeout)
               ? FromMs(timeout - static_cast<int>(spent))
               : 0;
  });
}

// Not in line: otherwise the short way would save registers for this code.
[[gnu::noinline]] int LongEpoll(int fd, epoll_event* events, int capacity,
                                int timeout) {
  return WithUnread(fd, events, capacity,
                    [&](epoll_event* to, int room, bool now) {
                      return EpollNow(fd, to, room, now ? 0 : timeout);
                    });
}

int LongEpollPwait(int fd, epoll_event* events, int capacity, int timeout,
                   const sigset_t* mask) {
  return WithUnread(
      fd, events, capacity, [&](epoll_event* to, int room, bool now) {
        return EpollPwaitNow(fd, to, room, now ? 0 : timeout, mask);
      });
}

int LongEpollPwait2(int fd, epoll_event* events, int capacity,
                    const timespec* timeout, const sigset_t* mask) {
  return WithUnread(
      fd, events, capacity, [&](epoll_event* to, int room, bool now) {
        return EpollPwait2Now(fd, to, room, now ? &kNoTime : timeout, mask);
      });
}

}  // namespace rcsock::posix
