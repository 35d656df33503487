// An epoll set for which the kernel waits (see Mirror).

#include "lib/posix/iomux/epoll_mirror.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/shm/bells.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/sharing/unread.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using rendezvous::Conductor;

constinit std::atomic<EpollSet*> mirrored_sets{nullptr};

namespace {

// An epoll set of rcsock's own, which has the bells of all mirrored sets,
// edge-triggered.  The conductor watches it.
struct Watch {
  std::atomic<int> set{-1};
  lane::BellMask bells RC_GUARDED_BY(interest_latch) = 0;
  Conductor* conductor RC_GUARDED_BY(interest_latch) = nullptr;
};
constinit Watch watch;

// Some epoll set has another set in it with EPOLLET, at any depth.  Then each
// arrival is an edge.  Written with interest_latch.
constinit std::atomic<bool> edges_outside{false};

// A timer will look at the sets that the conductor has found busy.  Belongs to
// the conductor's turn.
constinit bool late_posted = false;
constexpr std::uint32_t kLateMs = 1;

void LookLate();

// If there is no memory for the timer, the conductor waits for the latches of
// the sets.
void LookLateSoon() {
  if (late_posted) return;
  Conductor* const conductor = Conductor::IfRunning();
  late_posted = conductor != nullptr &&
                conductor->After(kLateMs, [] { LookLate(); }) != 0;
  if (late_posted) return;
  for (EpollSet* set = mirrored_sets.load(std::memory_order_acquire);
       set != nullptr; set = set->mirror()->next) {
    if (std::exchange(set->mirror()->late, false)) set->UpdateMirror(true);
  }
}

// The edge of the bell is used up.  If a thread holds the set, the conductor
// looks later.
void LookAtRang(EpollSet* set) {
  set->mirror()->late = !set->TryUpdateMirror();
}

void LookLate() {
  const Critical critical;
  late_posted = false;
  bool busy = false;
  for (EpollSet* set = mirrored_sets.load(std::memory_order_acquire);
       set != nullptr; set = set->mirror()->next) {
    if (set->mirror()->late) LookAtRang(set);
    busy |= set->mirror()->late;
  }
  if (busy) LookLateSoon();
}

void BellsRang() {
  constexpr int kMost = 64;
  epoll_event events[kMost];
  const Critical critical;
  const long n =
      ::syscall(SYS_epoll_pwait, watch.set.load(std::memory_order_acquire),
                events, kMost, 0, nullptr, 8);
  lane::BellMask rang = 0;
  for (long i = 0; i < n; ++i) rang |= lane::BellBit(events[i].data.fd);
  bool busy = false;
  for (EpollSet* set = mirrored_sets.load(std::memory_order_acquire);
       set != nullptr; set = set->mirror()->next) {
    if (set->mirror()->fd.load(std::memory_order_acquire) >= 0 &&
        (rang & lane::BellBit(set->bell())) != 0) {
      LookAtRang(set);
      busy |= set->mirror()->late;
    }
  }
  if (busy) LookLateSoon();
}

// A set may be raised already, and have rung for its generation.  Each set gets
// a new generation, so that its next message is an edge.  This thread stores
// the flag with interest_latch.  If a set enters the list after that, its
// conductor knows of edges.  A set that entered before is in this walk.
void HearEdges() {
  if (edges_outside.load(std::memory_order_relaxed)) return;
  {
    const Critical critical;
    const base::LatchGuard hold(interest_latch);
    edges_outside.store(true, std::memory_order_relaxed);
  }
  for (EpollSet* set = mirrored_sets.load(std::memory_order_acquire);
       set != nullptr; set = set->mirror()->next) {
    if (set->mirror()->fd.load(std::memory_order_acquire) >= 0) {
      set->UpdateMirror(true);
    }
  }
}

class BellWatcher final : public rendezvous::AnchorWatcher {
 public:
  void OnAnchor(std::uint32_t) override { BellsRang(); }
};

bool WatchBell(Conductor* conductor, int bell) RC_REQUIRES(interest_latch) {
  int set = watch.set.load(std::memory_order_relaxed);
  if (set < 0) {
    set = base::OpenHigh(
        [] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); });
    if (set < 0) return false;
    watch.bells = 0;
    watch.conductor = nullptr;
    watch.set.store(set, std::memory_order_release);
  }
  if ((watch.bells & lane::BellBit(bell)) == 0) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.fd = bell;
    if (::syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD,
                  conductor->bells()->bell_fd(bell), &event) != 0) {
      return false;
    }
    watch.bells |= lane::BellBit(bell);
  }
  if (watch.conductor == conductor) return true;
  std::shared_ptr<BellWatcher> watcher;
  try {
    watcher = std::make_shared<BellWatcher>();
  } catch (...) {
    return false;  // no memory
  }
  if (!conductor->Watch(set, std::move(watcher), EPOLLIN)) return false;
  watch.conductor = conductor;
  return true;
}

}  // namespace

void Mirror::Raise() {
  const Critical critical;
  const base::LatchGuard hold(latch);
  const int to = fd.load(std::memory_order_relaxed);
  if (to < 0) return;
  raised.store(true, std::memory_order_relaxed);
  lane::shm::KickFd(to);
}

void Mirror::Lower() {
  const Critical critical;
  const base::LatchGuard hold(latch);
  const int of = fd.load(std::memory_order_relaxed);
  if (of < 0 || !raised.load(std::memory_order_relaxed)) return;
  lane::shm::EmptyFd(of);
  raised.store(false, std::memory_order_relaxed);
}

void Mirror::Close() {
  const base::LatchGuard hold(latch);
  const int of = fd.exchange(-1, std::memory_order_acq_rel);
  if (of >= 0) base::CloseRaw(of);
  raised.store(false, std::memory_order_relaxed);
}

// From here on the conductor hears the bell.  The kernel's part of the set has
// the mirror in place of the bell and the sources.
bool Registry::OpenMirror(EpollSet* set) {
  Mirror& mirror = set->mirror_;
  Conductor* const conductor = Conductor::IfRunning();
  if (conductor == nullptr || !EnsurePoller(set) ||
      !WatchBell(conductor, set->bell())) {
    return false;
  }
  epoll_event event{};
  if (mirror.fd.load(std::memory_order_relaxed) < 0) {
    const int fd = base::OpenHigh(
        [] { return ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (fd < 0) return false;
    event.events = EPOLLIN;
    event.data.ptr = &mirror;
    // A wait that the mirror wakes removes it from what the program gets.
    set->ever_user_.store(true, std::memory_order_release);
    if (real::epoll_ctl(set->fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      base::CloseRaw(fd);
      return false;
    }
    mirror.fd.store(fd, std::memory_order_release);
    set->poller_->Arm();
  }
  if (set->bell_in_kernel_) {
    real::epoll_ctl(set->fd_, EPOLL_CTL_DEL, set->poller_->fd(), &event);
    set->bell_in_kernel_ = false;
  }
  if (mirror.watched_by != conductor) {
    mirror.watched_by = conductor;
    for (int i = 0; i < set->source_count(); ++i) {
      lane::Source* const source = set->source(i);
      real::epoll_ctl(set->fd_, EPOLL_CTL_DEL, source->fd(), &event);
      conductor->SourceWanted(source, 1);
    }
  }
  if (!mirror.listed) {
    mirror.listed = true;
    mirror.next = mirrored_sets.load(std::memory_order_relaxed);
    mirrored_sets.store(set, std::memory_order_release);
  }
  return true;
}

void Registry::CloseMirror(EpollSet* set) {
  Mirror& mirror = set->mirror_;
  if (mirror.fd.load(std::memory_order_relaxed) >= 0) {
    set->poller_->Disarm();
    Conductor* const conductor = Conductor::IfRunning();
    const bool watched = conductor != nullptr && conductor == mirror.watched_by;
    for (int i = 0; watched && i < set->source_count(); ++i) {
      conductor->SourceWanted(set->source(i), -1);
    }
    mirror.Close();
    mirror.watched_by = nullptr;
  }
  mirror.wanted.store(false, std::memory_order_relaxed);
}

bool EpollSet::SeenFromOutside(bool edges) {
  if (outside_.load(std::memory_order_relaxed)) return true;
  if (edges) HearEdges();
  if (mirror_.wanted.load(std::memory_order_relaxed)) return true;
  bool seen = true;
  {
    Critical critical;
    interest_latch.lock();
    mirror_.wanted.store(true, std::memory_order_relaxed);
    timer_.Refuse();
    // Without a poller the mirror comes with the first stream.
    if (poller_ != nullptr) {
      seen = Registry::OpenMirror(this);
      if (!seen && !HasUser()) {
        Registry::DropBell(this);
        seen = true;
      }
    }
    interest_latch.unlock();
  }
  // Arms, then looks.
  if (seen) UpdateMirror(false);
  return seen;
}

// Whether a stream of the set has bytes that the kernel does not know of
// (kUnread).
bool EpollSet::HasUnread() {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    if (const File* file = Entry(fd); file == nullptr || file->Hidden()) {
      continue;
    }
    Sock* const sock = LookupSock(fd);
    if (sock == nullptr || sock->fd() != fd ||
        (sock->read_ahead().Bytes() == 0 && !Looks(sock).HasError())) {
      continue;
    }
    // Called before interest_latch is taken, since this takes the stream's
    // latch.
    const bool failed = Looks(sock).HasError();
    bool has = false;
    interest_latch.lock();
    for (Interest* i = sock->interests; i != nullptr && !has;
         i = i->next_of_sock) {
      const std::uint32_t events = i->events.load(std::memory_order_relaxed);
      has = i->set == this && i->in_kernel &&
            !i->spent.load(std::memory_order_relaxed) &&
            ((events & (EPOLLIN | EPOLLRDNORM)) != 0 || failed) &&
            ((events & static_cast<std::uint32_t>(EPOLLET)) == 0 ||
             i->edge.load(std::memory_order_relaxed));
    }
    interest_latch.unlock();
    if (has) return true;
  }
  return false;
}

// Called by the conductor when it has taken an edge of the bell (`rang`), or by
// a thread that is about to ask the kernel.
//
// A sender rings once in a generation of the bell.  While the mirror is raised,
// only threads that wait for edges need more rings.  A new generation begins
// before a look that lowers the mirror, or after which the conductor sleeps.
// So a sender that posts behind that look rings.
void EpollSet::UpdateMirror(bool rang) {
  const Critical critical;
  const base::LatchGuard hold(wait_latch_);
  UpdateMirrorLatched(rang);
}

// A thread of the program may hold the latch while it spins, or has lost its
// processor.  The conductor never sleeps for that latch.
bool EpollSet::TryUpdateMirror() {
  constexpr int kTries = 32;
  const Critical critical;
  for (int i = 0; !wait_latch_.try_lock(); ++i) {
    if (i == kTries) return false;
    base::CpuRelax();
  }
  UpdateMirrorLatched(true);
  wait_latch_.unlock();
  return true;
}

void EpollSet::UpdateMirrorLatched(bool rang) {
  if (mirror_.fd.load(std::memory_order_relaxed) < 0) return;
  const auto looks = [this] {
    wait_latch_.AssertHeld();
    return (HasUser() && HasEvents()) || (AnyUnread() && HasUnread());
  };
  const bool edge = rang && edges_outside.load(std::memory_order_relaxed);
  if (edge) poller_->Renew();
  const bool raised = mirror_.raised.load(std::memory_order_relaxed);
  bool has = looks();
  if (!has && !edge && (rang || raised)) {
    poller_->Renew();
    has = looks();
  }
  if (!has) {
    mirror_.Lower();
  } else if (!raised || edge) {
    mirror_.Raise();
  }
}

void UpdateMirrorsNow() {
  const int saved = errno;
  for (EpollSet* set = mirrored_sets.load(std::memory_order_acquire);
       set != nullptr; set = set->mirror()->next) {
    const Mirror* const mirror = set->mirror();
    if (mirror->fd.load(std::memory_order_relaxed) >= 0 &&
        (set->HasUser() || mirror->raised.load(std::memory_order_relaxed) ||
         AnyUnread())) {
      set->UpdateMirror(false);
    }
  }
  errno = saved;
}

void MirrorsForkChild() {
  interest_latch.AssertUnshared();
  const int set = watch.set.exchange(-1);
  if (set >= 0) base::CloseRaw(set);
  watch.bells = 0;
  watch.conductor = nullptr;
  late_posted = false;
  // A set that another thread was closing is in no table and in no pool.  Its
  // latch may be held for ever.
  for (EpollSet* one = mirrored_sets.load(std::memory_order_relaxed);
       one != nullptr; one = one->mirror()->next) {
    Registry::ForkChild(one);
    one->mirror()->late = false;
  }
}

// --- What the set has: these looks report nothing, and use up no edge.

// Whether the ready list has an event.  Registrations without events leave the
// list, as in Collect.  The others keep their order.  The count changes at the
// end, so that other threads never see the list empty meanwhile.
bool EpollSet::AnyListed() {
  Interest* batch[64];
  for (bool found = false; !found;) {
    int n = 0;
    ready_latch_.lock();
    while (n < 64 && ready_head_ != nullptr) {
      batch[n] = ready_head_;
      Delist(ready_head_);
      ++n;
    }
    ready_latch_.unlock();
    if (n == 0) return false;
    int gone = 0;
    while (gone < n && !(found = HasEvent(batch[gone]))) ++gone;
    int back = 0;
    ready_latch_.lock();
    for (int b = n; b-- > gone;) {
      if (batch[b]->set == this && batch[b]->in_user.load()) {
        back += EnlistFirst(batch[b]);
      }
    }
    ListShrinks(n - back);
    ready_latch_.unlock();
    if (found) return true;
  }
  return false;
}

// Whether a wait would report this registration of the list.
bool EpollSet::HasEvent(Interest* interest) {
  Sock* const sock = interest->sock;
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if (interest->set != this || sock == nullptr ||
      !interest->in_user.load(std::memory_order_relaxed) ||
      interest->dormant.load(std::memory_order_acquire) ||
      interest->spent.load(std::memory_order_relaxed)) {
    return false;
  }
  const bool by_edges = (events & static_cast<std::uint32_t>(EPOLLET)) != 0;
  if (by_edges) {
    Looks(sock).TakeEnd();
    if (!interest->edge.exchange(false, std::memory_order_relaxed)) {
      return false;
    }
  }
  bool plain = false;
  const std::uint32_t ready =
      Looks(sock).Readiness(
          -1, (events & 0xffff) | EPOLLERR | EPOLLHUP | EPOLLRDHUP, &plain) &
      ((events & 0xffff) | EPOLLERR | EPOLLHUP);
  // If the registration has been armed anew meanwhile, the next look answers.
  const bool anew =
      interest->events.load(std::memory_order_relaxed) != events ||
      interest->sock != sock;
  const bool has = ready != 0 || anew;
  if (by_edges && has) interest->edge.store(true, std::memory_order_relaxed);
  return has;
}

// Whether a wait would find something.
bool EpollSet::HasEvents() {
  Rebuild();
  for (int d = 0; d < direct_count_; ++d) {
    Interest* const interest = direct_[d].interest;
    const std::uint32_t events =
        interest->events.load(std::memory_order_relaxed);
    if ((events & kReadable) == 0 ||
        (events & static_cast<std::uint32_t>(EPOLLET)) != 0 ||
        interest->spent.load(std::memory_order_relaxed) ||
        !direct_[d].lane->RxPending()) {
      continue;
    }
    if (HasEvent(interest)) return true;
  }
  // SomethingReady puts the edges of direct streams onto the list.
  SomethingReady();
  return AnyListed();
}

}  // namespace rcsock::posix
