// What happens to the registrations of a stream when the stream changes sides,
// has something to report, or is closed.

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/log.h"
#include "lib/base/poll_now.h"
#include "lib/base/real.h"
#include "lib/lane/bell_cpu.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/epoll_away.h"
#include "lib/posix/iomux/once.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

namespace {

constinit Interests interests;

// Streams whose registrations are to leave the kernel's sets, linked by
// Sock::moving_next.
constinit Sock* moving RC_GUARDED_BY(interest_latch) = nullptr;
// The time before which /proc is not asked.
constinit std::uint64_t ask_from_ns RC_GUARDED_BY(interest_latch) = 0;

void AskKernelOf(Sock* first) RC_REQUIRES(interest_latch) {
  const std::uint64_t start = base::NowNs();
  for (Sock* sock = first; sock != nullptr; sock = sock->moving_next) {
    for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
      if (!i->asked) continue;
      EpollSet* const set = i->set;
      const bool known = AskKernel(set, moving);
      for (Sock* other = sock; other != nullptr; other = other->moving_next) {
        for (Interest* k = other->interests; k != nullptr;
             k = k->next_of_sock) {
          if (k->set != set || !std::exchange(k->asked, false) || known) {
            continue;
          }
          // No thread here knows whether the kernel has reported this
          // registration.  The kernel knows, so it keeps the registration.
          Registry::LeaveUser(k);
          other->interests_stay = base::Reason::kPinnedOption;
        }
      }
      if (!known) set->EndOnceMove();
    }
  }
  // Streams of a large set that move one by one would each ask for the whole
  // set.  Streams that come too soon wait, and are asked about together.  So
  // asking takes a tenth of the time at most, however large the set is.  A
  // small set is soon asked.
  constexpr std::uint64_t kSoonNs = 100'000;
  constexpr std::uint64_t kMostNs = 200'000'000;
  const std::uint64_t end = base::NowNs();
  const std::uint64_t took = end - start;
  ask_from_ns = took < kSoonNs ? end : end + std::min(9 * took, kMostNs);
}

// Returns whether a thread that sleeps has to look at a registration that has
// just left the kernel's set.  The kernel may have woken a thread for input
// that this thread no longer finds there.  Input that comes later the conductor
// reports (Sock::Moved).  Room is reported to those only who have looked for
// it.  All others sleep on: hundreds of streams may move at once.
bool IsToLook(const Interest* interest) RC_REQUIRES(interest_latch) {
  if (Registry::AsksRoom(interest)) return true;
  constexpr std::uint32_t kPolls =
      EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLRDBAND;
  pollfd one{interest->fd,
             static_cast<short>(
                 interest->events.load(std::memory_order_relaxed) & kPolls),
             0};
  return base::PollNow(&one) != 0;
}

// Leaves the registrations to the kernel if TCP has ended, and returns whether
// it has.  The stream would go back at once, and the kernel would report the
// end a second time.
bool StaysAtItsEnd(Sock* sock) RC_REQUIRES(interest_latch) {
  if (!sock->anchor().HasEnd()) return false;
  sock->interests_user = false;
  sock->interests_stay = base::Reason::kShortLived;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_kernel) continue;
    Registry::LeaveUser(i);
    i->asked = (i->events.load() & EPOLLONESHOT) != 0;
  }
  return true;
}

// Moves all streams of `moving`.
void MoveAll() RC_REQUIRES(interest_latch) {
  bool asks = false;
  for (Sock* sock = moving; sock != nullptr; sock = sock->moving_next) {
    // The stream may have gone back meanwhile.
    if (sock->mode() != Mode::kEngine) continue;
    sock->interests_user = true;
    for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
      if (!i->in_kernel) continue;
      if (!Registry::EnterUser(i)) {
        sock->interests_stay = base::Reason::kNoMemory;
        continue;
      }
      if ((i->events.load() & EPOLLONESHOT) == 0) continue;
      i->set->BeginOnceMove();
      i->told_by_kernel = i->armed_here = false;
      i->spent.store(false, std::memory_order_relaxed);
      i->asked = asks = true;
    }
  }
  if (asks) AskKernelOf(moving);
  for (Sock* sock = moving; sock != nullptr; sock = sock->moving_next) {
    if (asks && sock->interests_user && StaysAtItsEnd(sock)) continue;
    for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
      if (!i->in_kernel || !i->in_user.load(std::memory_order_relaxed)) {
        continue;
      }
      Registry::RemoveFromKernel(i);
      // The second count.  A wait that began after the first may get the event
      // from the kernel, and then from the lane.
      i->set->Moved();
      i->asked = (i->events.load() & EPOLLONESHOT) != 0;
      Registry::MakeReady(i);
      // The first stream in user space also kicks threads that have slept in
      // the kernel since before: they do not count as sleepers.
      if (Registry::TakeFirst(i->set) || i->asked || IsToLook(i)) {
        i->set->KickBell();
      }
    }
  }
  // Only after all of them have left.
  for (Sock* sock = moving; sock != nullptr && asks; sock = sock->moving_next) {
    for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
      if (!std::exchange(i->asked, false)) continue;
      const std::uint32_t at = i->set->EndOnceMove();
      if (!i->in_kernel) i->moved_at = at;
    }
  }
}

// Runs in the conductor when the waiting streams may be asked about.
void MoveWaiting() {
  Critical critical;
  interest_latch.lock();
  MoveAll();
  Sock* sock = std::exchange(moving, nullptr);
  interest_latch.unlock();
  while (sock != nullptr) {
    interest_latch.lock();
    Sock* const next = std::exchange(sock->moving_next, nullptr);
    sock->moves = false;
    const base::Reason stay =
        std::exchange(sock->interests_stay, base::Reason::kNone);
    // Since MoveAll the stream has been to TCP and back.
    const bool anew = stay == base::Reason::kNone &&
                      sock->mode() == Mode::kEngine && !sock->interests_user;
    interest_latch.unlock();
    if (stay != base::Reason::kNone) sock->way_back().PinSoon(stay);
    if (!anew || interests.ToUser(sock)) sock->Moved();
    sock->Unref();
    sock = next;
  }
}

}  // namespace

[[gnu::cold]] void Interests::Install() { Registrations::Set(&interests); }

bool Interests::ToUser(Sock* sock) {
  Critical critical;
  interest_latch.lock();
  bool asks = false;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    asks |= i->in_kernel && (i->events.load() & EPOLLONESHOT) != 0;
  }
  const std::uint64_t now = asks ? base::NowNs() : 0;
  if (sock->moves || (asks && now < ask_from_ns)) {
    const bool first = moving == nullptr;
    if (!sock->moves.exchange(true)) {
      sock->Ref();
      sock->moving_next = std::exchange(moving, sock);
    }
    const auto ms = static_cast<std::uint32_t>(
        now < ask_from_ns ? (ask_from_ns - now) / 1'000'000 + 1 : 1);
    interest_latch.unlock();
    rendezvous::Conductor* conductor = rendezvous::Conductor::IfRunning();
    if (first && (conductor == nullptr ||
                  conductor->After(ms, [] { MoveWaiting(); }) == 0)) {
      MoveWaiting();
    }
    return false;
  }
  Sock* const waiting = std::exchange(moving, sock);
  MoveAll();
  moving = waiting;
  const base::Reason stay =
      std::exchange(sock->interests_stay, base::Reason::kNone);
  interest_latch.unlock();
  // A registration stays in the kernel, which sees TCP alone.
  if (stay != base::Reason::kNone) sock->way_back().PinSoon(stay);
  return true;
}

void Interests::ToKernel(Sock* sock) {
  Critical critical;
  Lookers lookers;
  interest_latch.lock();
  if (sock->mode() == Mode::kEngine) {
    interest_latch.unlock();
    return;
  }
  sock->interests_user = false;
  Interest* next = nullptr;
  for (Interest* i = sock->interests; i != nullptr; i = next) {
    next = i->next_of_sock;
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    EpollSet* set = i->set;
    if (i->dormant.load(std::memory_order_relaxed)) {
      lookers.Forget(i);
      continue;
    }
    Registry::LeaveUser(i);
    if ((i->events.load() & EPOLLONESHOT) != 0) set->OnceLeaves();
    if (i->spent.load(std::memory_order_relaxed)) continue;
    // The number may have been closed since, while a copy of it is left.
    if (posix::Named(i->fd) != sock) i->fd = sock->fd();
    if (Registry::AddToKernel(i)) {
      i->edge.store(true, std::memory_order_relaxed);
      // Since the mode changed, neither the kernel nor rcsock has reported the
      // unread bytes.  A thread that has looked meanwhile looks again.
      if (sock->mode() == Mode::kUnread) Registry::KickSleepers(set);
    } else if (set->fd() >= 0) {  // it is not about to be closed
      base::Log("fd %d can't go back into epoll set %d: errno %d", i->fd,
                set->fd(), errno);
    }
  }
  interest_latch.unlock();
  lookers.WaitOut();
}

void Interests::Refresh(Sock* sock, bool barrier) {
  Critical critical;
  EpollSet* sets[16];
  int count = 0;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    if (i->direct.load(std::memory_order_relaxed)) i->set->MarkDirty();
    if (count < 16) sets[count++] = i->set;
  }
  interest_latch.unlock();
  if (!barrier) return;
  for (int i = 0; i < count; ++i) Registry::WaitOutLookers(sets[i]);
}

void Interests::MakeEdges(Sock* sock, Edge edge) {
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    if (edge == Edge::kRoom && Registry::NoEdgeOfRoom(i)) continue;
    if (edge == Edge::kRoomAsked && !Registry::AsksRoom(i)) continue;
    Registry::MakeReady(i);
    Registry::KickSleepers(i->set);
  }
  interest_latch.unlock();
}

void Interests::Kick(Sock* sock) {
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    i->set->KickBell();
  }
  interest_latch.unlock();
}

void Interests::PeerKnown(Sock* sock) {
  Critical critical;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    Registry::CountLocal(i);
  }
  interest_latch.unlock();
}

// Only the latch shows that there is no registration.  The kernel may know a
// registration, and report an event of it to another thread, before it is
// listed here.
[[gnu::hot]] void Interests::Drop(Sock* sock, int fd, int kept) {
  Critical critical;
  Lookers lookers;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr;) {
    Interest* next = i->next_of_sock;
    if (fd < 0 || i->fd == fd) {
      if (!i->dormant.load(std::memory_order_relaxed)) {
        i->set->DropRegistered();
      }
      if (kept >= 0 && i->in_kernel && i->fd == kept) {
        epoll_event unused{};
        real::epoll_ctl(i->set->fd(), EPOLL_CTL_DEL, kept, &unused);
      }
      lookers.Forget(i);
    }
    i = next;
  }
  interest_latch.unlock();
  lookers.WaitOut();
}

static bool MayHideLatched(const Sock* sock) RC_REQUIRES(interest_latch) {
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (i->in_kernel || !Registry::MayHide(i->set)) return false;
  }
  return !sock->moves && (sock->interests == nullptr || sock->interests_user);
}

bool Interests::MayHide(Sock* sock, bool forking) {
  if (forking) {
    interest_latch.AssertHeld();
    return MayHideLatched(sock);
  }
  Critical critical;
  const base::LatchGuard hold(interest_latch);
  return MayHideLatched(sock);
}

void Interests::HideSets(Sock* sock) {
  interest_latch.AssertUnshared();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    SetKind(i->set, FileKind::kHiddenSet);
  }
}

bool Interests::Named(Sock* sock, int fd) {
  Critical critical;
  interest_latch.lock();
  bool found = false;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    found |= i->fd == fd;
  }
  interest_latch.unlock();
  return found;
}

bool Interests::Kept(Sock* sock) {
  if (sock->interests == nullptr) return false;
  Critical critical;
  interest_latch.lock();
  bool kept = false;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    const long flags = ::syscall(SYS_fcntl, i->set->fd(), F_GETFD);
    kept |= flags >= 0 && (flags & FD_CLOEXEC) == 0;
  }
  interest_latch.unlock();
  return kept;
}

int InterestsUnread(Sock* sock, EpollSet* set, epoll_event* out, int capacity) {
  const bool unread = sock->read_ahead().Bytes() > 0;
  // Called before interest_latch is taken, since this takes the stream's latch.
  const bool failed = Looks(sock).HasError();
  Critical critical;
  int found = 0;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr && found < capacity;
       i = i->next_of_sock) {
    const std::uint32_t events = i->events.load(std::memory_order_relaxed);
    std::uint32_t holds = unread ? events & (EPOLLIN | EPOLLRDNORM) : 0;
    if (failed) holds |= EPOLLERR;
    const bool once = (events & EPOLLONESHOT) != 0;
    if (i->set != set || !i->in_kernel || holds == 0 ||
        (once && i->spent.load(std::memory_order_relaxed)) ||
        ((events & EPOLLET) != 0 && !i->edge.exchange(false))) {
      continue;
    }
    if ((events & EPOLLET) == 0) {
      // If there is room for one report only, the report has all else that
      // holds, too.
      pollfd one{i->fd, static_cast<short>(events & 0xffff), 0};
      // A raw system call: poll() of libc would be a cancellation point with
      // the latch held.
      ::syscall(SYS_poll, &one, 1, 0);
      holds |= static_cast<std::uint16_t>(one.revents);
    }
    if (once && !TakeOnce(i)) continue;
    if (!base::TryTell(out + found, holds,
                       i->data.load(std::memory_order_relaxed))) [[unlikely]] {
      if ((events & EPOLLET) != 0) i->edge.store(true);
      if (once) GiveOnce(i);
      tls_untold = true;
      break;
    }
    ++found;
  }
  interest_latch.unlock();
  return found;
}

bool Interests::NotifyLatched(Sock* sock) {
  if (sock->lane() == nullptr || !sock->OnLane()) return false;
  interest_latch.lock();
  std::uint32_t bits = 0;
  int bell = 0;
  EpollSet* only = nullptr;
  bool several = false;
  bool looked_at = false;  // direct from now on
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    if (only != nullptr && only != i->set) several = true;
    only = i->set;
    bell = i->set->bell();
    if (sock->notice().link() != nullptr)
      i->set->AddLink(sock->notice().link());
    if (sock->notice().source() != nullptr)
      i->set->AddSource(sock->notice().source());
    looked_at |= Registry::ChooseDirect(i);
    bits |=
        lane::kNotifyRxPoller | lane::kNotifyTxPoller |
        (i->direct.load(std::memory_order_relaxed) ? 0u : lane::kNotifyRxBits);
  }
  sock->notice().ReportedBy(sock->interests, TablePlace(sock->fd()));
  interest_latch.unlock();
  // The stream rings one bell.  With several sets, perhaps no thread waits on
  // the set of that bell.  So the stream rings the conductor's bell, and the
  // conductor wakes all sets.
  if (several) bell = 0;
  // No set watches now.  The bell of an epoll set stays: a wish costs the
  // peer's line and a heavy fence, and the next registration will want this
  // bell again.  The conductor's bell does not stay: the stream had it for the
  // switch, which is over.
  if (bits == 0 && sock->notice().bell() != 0) return false;
  if (bits != sock->notice().bits() || bell != sock->notice().bell()) {
    sock->notice().Set(bits, bell);
    return true;
  }
  return looked_at;
}

int Interests::Bell(Sock* sock, int otherwise) {
  int bell = otherwise;
  Critical critical;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!Registry::EnsurePoller(i->set)) continue;
    bell = i->set->bell();
    // The conductor's thread runs here.  `otherwise` is the bell of the thread
    // that uses the stream.
    lane::ShareBellCpu(bell, otherwise);
    break;
  }
  interest_latch.unlock();
  return bell;
}

void InterestsNotify(Sock* sock) {
  Latched latched(sock);
  // A message that came before the new bits, or before the stream was direct,
  // has rung no bell.  A thread that sleeps has not looked at that message.
  if (interests.NotifyLatched(sock)) Registrations::Ready(sock);
}

void InterestsForkLock() { interest_latch.LockForFork(); }
void InterestsForkUnlock(bool child) { interest_latch.UnlockAfterFork(child); }

// Forgets registrations in sets that another thread of the parent was closing.
// No thread has these sets in the child.
static void ForgetLostSets(Sock* sock) {
  Critical critical;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr;) {
    Interest* next = i->next_of_sock;
    EpollSet* set = i->set;
    if (set->fd() < 0 || Named(set->fd()) != set) {
      Registry::ForkChild(set);
      Registry::Forget(i);
    }
    i = next;
  }
  interest_latch.unlock();
}

void InterestsForkChild() {
  interest_latch.AssertUnshared();
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* file = Named(fd);
    if (file != nullptr && file->kind == FileKind::kEpoll) {
      Registry::ForkChild(static_cast<EpollSet*>(file));
    } else if (file != nullptr && file->kind == FileKind::kSock) {
      auto* sock = static_cast<Sock*>(file);
      sock->moving_next = nullptr;
      if (sock->moves.exchange(false)) sock->Unref();
    }
  }
  Registry::ForkChildOfPool();
  MirrorsForkChild();
  AwayForkChild();
  ForgetBells();
  // These streams were asked to go to TCP before the fork, or are the parent's.
  moving = nullptr;
  ask_from_ns = 0;
  for (int fd = 0; fd <= top; ++fd) {
    File* file = Named(fd);
    if (file == nullptr || file->kind != FileKind::kSock) continue;
    auto* sock = static_cast<Sock*>(file);
    ForgetLostSets(sock);
    // Another thread of the parent may have been about to move them.
    if (sock->mode() != Mode::kEngine) interests.ToKernel(sock);
  }
}

}  // namespace rcsock::posix
