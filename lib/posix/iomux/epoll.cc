#include "lib/posix/iomux/epoll.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/base/direct.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/base/real.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/socket/sock_search.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

namespace {

// All flags that the kernel accepts beside EPOLLEXCLUSIVE.
constexpr std::uint32_t kWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP |
    static_cast<std::uint32_t>(EPOLLET) | EPOLLEXCLUSIVE;

// Returns whether the call arms a registration of the kernel's with what it has
// already, and the kernel does nothing else for it: programs with ae.c do so
// for each connection.  If the descriptor is ready, a level-triggered
// registration is on the kernel's ready list already, and a thread has been
// woken for it.  With the flags below the call would arm, ring or fail.
[[gnu::always_inline]] inline bool Repeats(int op, const Interest* found,
                                           const epoll_event* event)
    RC_REQUIRES(interest_latch) {
  constexpr std::uint32_t kActs = static_cast<std::uint32_t>(EPOLLET) |
                                  EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
  return op == EPOLL_CTL_MOD && found != nullptr && found->in_kernel &&
         found->Is(event->events, event->data.u64) &&
         (event->events & kActs) == 0;
}

// Makes a new registration what a call asks for, and lists it by its stream.
[[gnu::always_inline]] inline void Fill(Interest* interest, EpollSet* set,
                                        int fd, Sock* sock,
                                        const epoll_event& event)
    RC_REQUIRES(interest_latch) {
  interest->set = set;
  interest->sock = sock;
  interest->fd = fd;
  interest->events.store(event.events, std::memory_order_relaxed);
  interest->data.store(event.data.u64, std::memory_order_relaxed);
  Registry::SetInKernel(interest, !sock->interests_user);
  interest->in_user.store(false, std::memory_order_relaxed);
  interest->was_user = false;
  interest->spent.store(false, std::memory_order_relaxed);
  interest->CountArming();
  interest->edge.store(true, std::memory_order_relaxed);
  interest->direct.store(false, std::memory_order_relaxed);
  interest->told_by_kernel = interest->armed_here = false;
  interest->moved_at = set->moves() - (1u << 30);  // before every wait
  interest->told = 0;  // belongs to another set's waits
  interest->next_of_sock = sock->interests;
  sock->interests = interest;
}

// Counts a call that is spared, or could be if it were known that every call
// comes through the hooks.  After many, the conductor finds out, or looks at
// code that has come since.
inline void CountRepeat() {
  static constinit std::atomic<std::uint32_t> repeats{0};
  constexpr std::uint32_t kMany = 1024;
  const std::uint32_t count = repeats.load(std::memory_order_relaxed) + 1;
  repeats.store(count, std::memory_order_relaxed);
  if (count % kMany == 0) [[unlikely]]
    LookAtCalls();
}

}  // namespace

EpollSet* EpollSet::New(int fd, std::uint32_t copies) {
  Interests::Install();
  signal_users.take_back_wait.store(&TakeBackWait, std::memory_order_relaxed);
  signal_users.recount_wait.store(&RecountWait, std::memory_order_relaxed);
  Critical critical;
  interest_latch.lock();
  EpollSet* set = Registry::Take();
  interest_latch.unlock();
  if (set != nullptr) {
    set->set_fd(fd);
    set->copies_ = copies;
    set->timer_.Close();  // a child of fork has refused it
    set->nested_.store(false, std::memory_order_relaxed);
    set->ever_user_.store(false, std::memory_order_relaxed);
    set->outside_.store(false, std::memory_order_relaxed);
    set->idle_since_ = 0;
  }
  return set;
}

void EpollSet::LoseFd(int number) {
  Critical critical;
  interest_latch.lock();
  const int other = LeaveNumber(number, this);
  if (fd() == number) set_fd(other);
  interest_latch.unlock();
}

void EpollSet::Free() {
  Critical critical;
  DisarmOutside();
  // The wait latch comes first, since another thread's wait may be looking at
  // the lanes of this set's streams.  A thread that takes a lane away waits
  // only for looks of the sets that the stream is in (Interests::Refresh).  And
  // a wait must not report a registration that has been reused for another set.
  wait_latch_.lock();
  interest_latch.lock();
  // Registrations of streams that are still open.  The table leads to them,
  // since the kernel's part of the set has no list here.
  while (members_ != nullptr) Registry::Forget(members_);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top && registered_ > 0; ++fd) {
    File* file = Named(fd);
    if (file == nullptr || file->kind != FileKind::kSock) continue;
    auto* sock = static_cast<Sock*>(file);
    for (Interest* i = sock->interests; i != nullptr;) {
      Interest* next = i->next_of_sock;
      if (i->set == this) {
        if (!i->dormant.load(std::memory_order_relaxed)) --registered_;
        Registry::Forget(i);
      }
      i = next;
    }
  }
  registered_ = 0;
  set_fd(-1);
  if (local_tcp_.exchange(0, std::memory_order_relaxed) != 0) {
    for (auto& count : local_data_) count.store(0, std::memory_order_relaxed);
  }
  crowded_.store(false, std::memory_order_relaxed);
  heats_.store(false, std::memory_order_relaxed);
  Registry::CloseMirror(this);
  timer_.Close();
  interest_latch.unlock();
  DisarmAwake();
  life_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that sleeps in the set takes itself off the set's counts and bell
  // when it wakes.  Until then no other set may use them.
  const bool left = sleepers_.load(std::memory_order_seq_cst) > 0 ||
                    strangers_.load(std::memory_order_seq_cst) > 0;
  // The poller stays.  A thread may be on its way to sleep by it, and the next
  // life of the set can use it.
  if (poller_) poller_->RemoveLinks();
  bell_in_kernel_ = false;
  source_count_.store(0, std::memory_order_relaxed);
  direct_count_ = 0;
  wait_latch_.unlock();
  interest_latch.lock();
  if (Hidden()) SetKind(this, FileKind::kEpoll);
  if (left) {
    Registry::Leave(this);
  } else {
    Registry::Put(this);
  }
  interest_latch.unlock();
}

// Returns whether every wait finds what the registration has without the list.
// For that the registration asks for level-triggered input alone, each wait
// looks at its stream directly, and the stream has nothing else to report now.
// The caller holds interest_latch.
[[gnu::always_inline]] inline bool EpollSet::FoundAnyway(
    const Interest* interest) {
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  return interest->direct.load(std::memory_order_relaxed) &&
         (events & kAsked & ~static_cast<std::uint32_t>(EPOLLONESHOT)) ==
             EPOLLIN &&
         Looks(interest->sock).TellsInputAlone() &&
         Looks(interest->sock).RingTellsAll();
}

// Arms the registration with what this call asks for.  Returns what is left to
// do without the latch.
//
// While its data change, the registration asks for nothing.  A look without the
// latch reads the data first.  The look gets both values of one arming, or
// looks again.
[[gnu::always_inline]] inline EpollSet::CtlRest EpollSet::Arm(
    Interest* interest, const epoll_event& event) {
  interest->events.store(0, std::memory_order_relaxed);
  Registry::SetData(interest, event.data.u64);
  interest->events.store(event.events, std::memory_order_release);
  interest->told_by_kernel = false;
  interest->armed_here = true;
  interest->spent.store(false, std::memory_order_release);
  interest->CountArming();
  interest->dormant.store(false, std::memory_order_release);
  interest->edge.store(true, std::memory_order_relaxed);
  if (!interest->in_user.load(std::memory_order_relaxed)) return {};
  if (FoundAnyway(interest)) {
    // Orders what has just been stored before the look at the sleepers.
    base::FullFence();
  } else {
    Registry::MakeReady(interest);
  }
  return {.kick = true, .notify = Registry::MayBeDirect(interest)};
}

// Changes a registration in user space, as programs do for each request.  False
// if there is more to do, or an error to tell: the caller goes on with CtlCall.
[[gnu::always_inline]] inline bool EpollSet::QuickChange(
    int op, Interest* interest, const epoll_event* event, CtlRest* rest) {
  if (interest == nullptr ||
      !interest->in_user.load(std::memory_order_relaxed)) {
    return false;
  }
  const bool exists = !interest->dormant.load(std::memory_order_relaxed);
  if (op == EPOLL_CTL_DEL) {
    if (!exists) return false;
    --registered_;
    Registry::PutToSleep(interest);
    return true;
  }
  if (op != (exists ? EPOLL_CTL_MOD : EPOLL_CTL_ADD) ||
      ((interest->events.load(std::memory_order_relaxed) | event->events) &
       EPOLLEXCLUSIVE) != 0) {
    return false;
  }
  if (!exists) ++registered_;
  *rest = Arm(interest, *event);
  return true;
}

// Called behind a change, without the latch: wakes the threads that have to
// look again.
[[gnu::always_inline]] inline void EpollSet::AfterChange(const CtlRest& rest,
                                                         Sock* sock) {
  if (rest.kick) Registry::KickSleepers(this);
  if (rest.notify) InterestsNotify(sock);
}

// One call of epoll_ctl for a stream, beyond QuickChange.  What each connection
// comes to, once, is inlined.
class EpollSet::CtlCall {
 public:
  CtlCall(EpollSet* set, int op, int fd, Sock* sock, epoll_event* event)
      : set_(set), op_(op), fd_(fd), sock_(sock), event_(event) {}

  // `found` is the registration of the stream, or null.
  void Change(Interest* found) RC_REQUIRES(interest_latch);
  // Called after the change.  Wakes the threads that have to look again, and
  // returns the result.
  int Finish() RC_EXCLUDES(interest_latch, set_->wait_latch_);

 private:
  void Add() RC_REQUIRES(interest_latch);
  void AddNew() RC_REQUIRES(interest_latch);
  void Modify() RC_REQUIRES(interest_latch);
  void MoveToASide() RC_REQUIRES(interest_latch);
  void Arm(Interest* interest) RC_REQUIRES(interest_latch);
  void Delete() RC_REQUIRES(interest_latch);
  void Fail(int error) {
    errno = error;
    result_ = -1;
  }

  EpollSet* const set_;
  const int op_;
  const int fd_;
  Sock* const sock_;
  epoll_event* const event_;
  Interest* found_ = nullptr;
  Interest* dormant_ = nullptr;  // in place of found_
  Lookers lookers_;
  int result_ = 0;
  bool engine_ = false;    // the stream's registrations are in user space
  bool had_user_ = false;  // the set had a stream in user space before
  bool unknown_ = false;   // only the kernel may know the registration
  CtlRest rest_;
};

[[gnu::always_inline]] inline void EpollSet::CtlCall::Change(Interest* found) {
  engine_ = sock_->interests_user;
  had_user_ = set_->HasUser();
  found_ = found;
  if (found_ != nullptr && found_->dormant.load(std::memory_order_relaxed)) {
    dormant_ = std::exchange(found_, nullptr);
  }
  if (op_ == EPOLL_CTL_ADD) {
    Add();
  } else if (op_ != EPOLL_CTL_MOD && op_ != EPOLL_CTL_DEL) {
    Fail(EINVAL);
  } else if (found_ == nullptr) {
    unknown_ = true;
  } else if (op_ == EPOLL_CTL_MOD) {
    Modify();
  } else {
    Delete();
  }
}

[[gnu::always_inline]] inline void EpollSet::CtlCall::Add() {
  if ((event_->events & EPOLLEXCLUSIVE) != 0 &&
      (event_->events & ~kWithExclusive) != 0) {
    Fail(EINVAL);
  } else if (found_ != nullptr) {
    Fail(EEXIST);
  } else if (dormant_ != nullptr) {
    ++set_->registered_;
    Arm(dormant_);
  } else {
    AddNew();
  }
}

[[gnu::always_inline]] inline void EpollSet::CtlCall::AddNew() {
  Interest* const interest = Registry::TakeInterest();
  if (interest == nullptr) {
    Fail(ENOMEM);
    return;
  }
  if (!engine_) result_ = real::epoll_ctl(set_->fd_, op_, fd_, event_);
  if (result_ != 0) {
    Registry::GiveInterest(interest);
    return;
  }
  Fill(interest, set_, fd_, sock_, *event_);
  ++set_->registered_;
  rest_.notify = true;
  // The stream has moved here from another set, which must not report the
  // stream any more.
  for (Interest* i = interest->next_of_sock; i != nullptr;) {
    Interest* next = i->next_of_sock;
    if (i->set != set_ && i->dormant.load(std::memory_order_relaxed)) {
      lookers_.Forget(i);
    }
    i = next;
  }
  if (!engine_) return;
  if (Registry::EnterUser(interest)) {
    Registry::MakeReady(interest);
    rest_.kick = true;
  } else {
    Registry::Forget(interest);
    --set_->registered_;
    Fail(ENOMEM);
  }
}

void EpollSet::CtlCall::Modify() {
  if (found_->in_kernel) {
    result_ = real::epoll_ctl(set_->fd_, op_, fd_, event_);
  } else if (!found_->in_user.load(std::memory_order_relaxed)) {
    MoveToASide();
  } else if ((found_->events.load() | event_->events) & EPOLLEXCLUSIVE) {
    Fail(EINVAL);
  }
  if (result_ == 0) Arm(found_);
}

void EpollSet::CtlCall::Arm(Interest* interest) {
  const CtlRest rest = set_->Arm(interest, *event_);
  rest_.kick |= rest.kick;
  rest_.notify |= rest.notify;
}

// Puts a registration on a side again.  A spent ONESHOT that came back from a
// lane has been neither in the kernel's set nor in user space since.
void EpollSet::CtlCall::MoveToASide() {
  if (!engine_) {
    result_ = real::epoll_ctl(set_->fd_, EPOLL_CTL_ADD, fd_, event_);
    if (result_ == 0) Registry::SetInKernel(found_, true);
  } else if (Registry::EnterUser(found_)) {
    rest_.notify = true;
  } else {
    Fail(ENOMEM);
  }
}

void EpollSet::CtlCall::Delete() {
  if (found_->in_kernel) {
    result_ = real::epoll_ctl(set_->fd_, op_, fd_, event_);
  }
  if (result_ != 0) return;
  --set_->registered_;
  if (found_->in_user.load(std::memory_order_relaxed)) {
    Registry::PutToSleep(found_);
  } else {
    lookers_.Forget(found_);
    rest_.notify = true;
  }
}

[[gnu::always_inline]] inline int EpollSet::CtlCall::Finish() {
  if (unknown_) return real::epoll_ctl(set_->fd_, op_, fd_, event_);
  lookers_.WaitOut();
  rest_.notify = rest_.notify && result_ == 0 && engine_;
  set_->AfterChange(rest_, sock_);
  // A thread that has slept since before the set had a stream in user space
  // does not count as a sleeper.  The bell is in the set already, and wakes
  // that thread.
  if (rest_.kick && !had_user_) set_->KickBell();
  return result_;
}

// Goes on with what QuickChange has left.  Releases the latch.
[[gnu::hot]] int EpollSet::LongCtl(int op, int fd, Sock* sock,
                                   epoll_event* event, Interest* found) {
  CtlCall call(this, op, fd, sock, event);
  call.Change(found);
  interest_latch.unlock();
  return call.Finish();
}

// Returns whether a call may change the registration of `sock`.  Since the
// look-up another thread may have closed the stream's number, or the set's.
// The object may be another stream now.
[[gnu::always_inline]] inline bool EpollSet::MayChange(int number, int op,
                                                       int fd,
                                                       const Sock* sock) const {
  const bool plainly = Entry(fd) == sock && sock->kind == FileKind::kSock;
  if (!(plainly || Named(fd) == sock) || !IsAt(number)) [[unlikely]] {
    if (!InBorrowedMemory()) return false;
  }
  // The thread that closes the stream last has dropped its registrations, or is
  // about to.  After that the number is closed, or names another file.
  return op != EPOLL_CTL_ADD || !sock->ending().closed();
}

// One call for a stream that is the kernel's, with the system call in line, as
// each connection makes it.  Returns false, and has done nothing, if there is
// more to do, or an error to tell: the caller goes on with CtlCall.
[[gnu::always_inline]] inline bool EpollSet::KernelChange(int op, int fd,
                                                          Sock* sock,
                                                          Interest* found,
                                                          epoll_event* event,
                                                          int* result) {
  if (sock->interests_user) return false;
  if (found != nullptr && found->in_kernel && !found->was_user &&
      (op == EPOLL_CTL_MOD || op == EPOLL_CTL_DEL)) {
    *result = direct::EpollCtlInCritical(fd_, op, fd, event);
    if (*result != 0) return true;
    if (op == EPOLL_CTL_MOD) {
      Arm(found, *event);
    } else {
      --registered_;
      Registry::Forget(found);
    }
    return true;
  }
  if (op != EPOLL_CTL_ADD || sock->interests.load() != nullptr ||
      (event->events & EPOLLEXCLUSIVE) != 0) {
    return false;
  }
  Interest* const interest = Registry::TakeInterest();
  if (interest == nullptr) return false;
  *result = direct::EpollCtlInCritical(fd_, op, fd, event);
  if (*result == 0) {
    Fill(interest, this, fd, sock, *event);
    ++registered_;
  } else {
    Registry::GiveInterest(interest);
  }
  return true;
}

[[gnu::always_inline]] inline int EpollSet::CtlNow(int number, int op, int fd,
                                                   Sock* sock,
                                                   epoll_event* event) {
  // A copy: `event` is read while latches are held, and may go away meanwhile.
  epoll_event told;
  if (op != EPOLL_CTL_DEL) {
    if (Null(event) || !base::TrySmall(&told, event, sizeof told)) {
      return real::epoll_ctl(number, op, fd, event);
    }
    event = &told;
    if (op == EPOLL_CTL_ADD && nested_.load(std::memory_order_relaxed))
        [[unlikely]] {
      sock->way_back().Pin(base::Reason::kPinnedOption);
    }
  }
  Critical critical;
  interest_latch.lock();
  if (!MayChange(number, op, fd, sock)) [[unlikely]] {
    interest_latch.unlock();
    return kStale;
  }
  Interest* const found = Registry::Find(sock, this, fd);
  const bool repeats = Repeats(op, found, event);
  if (repeats && Registry::Known(this) &&
      sock->status_known.load(std::memory_order_relaxed) == copies_) {
    interest_latch.unlock();
    CountRepeat();
    return 0;
  }
  if (int result; KernelChange(op, fd, sock, found, event, &result)) {
    interest_latch.unlock();
    if (repeats && sock->status_known.load(std::memory_order_relaxed) != 0)
        [[unlikely]]
      CountRepeat();
    return result;
  }
  CtlRest rest;
  if (!QuickChange(op, found, event, &rest)) [[unlikely]] {
    return LongCtl(op, fd, sock, event, found);
  }
  interest_latch.unlock();
  AfterChange(rest, sock);
  return 0;
}

int EpollSet::Ctl(int number, int op, int fd, Sock* sock, epoll_event* event) {
  return CtlNow(number, op, fd, sock, event);
}

[[gnu::hot]] int EpollSet::Control(int number, int op, int fd,
                                   epoll_event* event, LongControl otherwise) {
  EpollSet* const set = LookupSet(number);
  File* const file = Entry(fd);
  if (set != nullptr && file != nullptr && file->kind == FileKind::kSock &&
      !base::tls_internal) [[likely]] {
    auto* const sock = static_cast<Sock*>(file);
    if (!sock->listening.load(std::memory_order_relaxed)) [[likely]] {
      const int result = set->CtlNow(number, op, fd, sock, event);
      if (result != kStale) [[likely]]
        return result;
    }
  }
  return otherwise(number, op, fd, event);
}

void EpollSet::SetNested() {
  if (outside_.load(std::memory_order_relaxed)) return;
  nested_.store(true, std::memory_order_relaxed);
  timer_.Refuse();
  // Streams on either side.  SetNested pins streams that are added later.
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* member = nullptr;
    {
      Critical critical;
      interest_latch.lock();
      File* file = registered_ > 0 ? Named(fd) : nullptr;
      if (file != nullptr && file->kind == FileKind::kSock) {
        auto* sock = static_cast<Sock*>(file);
        for (Interest* i = sock->interests; i != nullptr && member == nullptr;
             i = i->next_of_sock) {
          if (i->set == this) member = sock;
        }
      }
      if (member != nullptr) member->Ref();
      interest_latch.unlock();
    }
    if (member == nullptr) continue;
    member->way_back().Pin(base::Reason::kPinnedOption);
    // Another thread may have taken the stream from its lane, and not yet have
    // moved its registrations.
    Registrations::Get().ToKernel(member);
    member->Unref();
  }
  Critical critical;
  interest_latch.lock();
  if (members_ == nullptr) Registry::DropBell(this);
  interest_latch.unlock();
}

}  // namespace rcsock::posix
