#ifndef RCSOCK_LIB_POSIX_IOMUX_EPOLL_H_
#define RCSOCK_LIB_POSIX_IOMUX_EPOLL_H_

#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/lane/board.h"
#include "lib/lane/shm/link.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/iomux/epoll_mirror.h"
#include "lib/posix/iomux/interests.h"
#include "lib/posix/iomux/kept_timer.h"
#include "lib/posix/socket/interest_latch.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

// A wait of this thread could not store what it found where the program wants
// it.  An earlier wait that had reported other events leaves this set, too.
extern thread_local constinit bool tls_untold
    __attribute__((tls_model("initial-exec")));
inline bool NowhereToTell(epoll_event* out) {
  if (!tls_untold) [[likely]]
    return false;
  tls_untold = false;
  return !base::TryTell(out, 0, 0);
}

// For SignalUsers.
CountedWait TakeBackWait();
void RecountWait(const CountedWait& wait);

// An epoll instance of the application.  It owns the registrations of its
// streams in user space, the ready list and its poller.  Any thread may call
// it.
//
// Order of latches: wait_latch_, then tx_latch and rx_latch of a stream, then
// interest_latch, then ready_latch_ (I-LATCH-2).
class EpollSet final : public File {
 public:
  EpollSet() : File(FileKind::kEpoll) {}
  // `copies`: what TableCopies() said before; 0: others may have the set, too.
  static EpollSet* New(int fd, std::uint32_t copies = 0);
  void Free();
  static bool MayHold(int capacity) {
    return capacity > 0 &&
           capacity <= std::numeric_limits<int>::max() /
                           static_cast<int>(sizeof(epoll_event));
  }
  // `number`: the descriptor by which the caller found the set.
  int Ctl(int number, int op, int fd, Sock* sock, epoll_event* event);
  using LongControl = int (*)(int number, int op, int fd, epoll_event* event);
  static int Control(int number, int op, int fd, epoll_event* event,
                     LongControl otherwise);
  // Goes on with what has begun, maybe with an edge of the bell.
  class Leave;
  int Wait(Leave* leave, epoll_event* out, int capacity,
           std::int64_t timeout_ns, const sigset_t* mask);
  // epoll_wait for what arrives within a microsecond on the streams that each
  // wait looks at.  If nothing arrives, goes on as LongEpoll.
  int QuickWait(int fd, epoll_event* out, int capacity, int timeout);
  // Returns whether Wait would find a stream ready.  poll() calls this for an
  // epoll descriptor.
  bool AnyReady();

  // --- For an event loop of the program's that has this set in its own
  // (epoll_nested.cc).  One thread at a time may call these.
  //
  // Look reports what the lanes have, and does not ask the kernel.  It spins
  // for `spin_us` at most.  It returns -1 with ENODATA if no stream of the set
  // is on a lane.  It returns -1 with EAGAIN if nothing came and the thread has
  // spun long enough.
  int Look(epoll_event* out, int capacity, std::uint32_t spin_us);
  // From now on the set's descriptor becomes readable when something arrives.
  // False: something has arrived, and the caller looks first.
  bool ArmOutside();
  void DisarmOutside();

  // Returns whether the set has ever had a stream on a lane, or a report that
  // TakeOnce took.  If so, a wait looks at what the kernel told it (OfKernel).
  bool EverUser() const { return ever_user_.load(std::memory_order_acquire); }
  // Removes the bell, and what a lane has reported, from `events` of the
  // kernel, and returns how many remain.  `before` is moves() at the start of
  // the wait.  `ahead` is null, or kNoBell on entry; it then gets the number of
  // events before the bell.
  static constexpr int kNoBell = -1;
  int OfKernel(epoll_event* events, int count, std::uint32_t before,
               bool* bell = nullptr, int* ahead = nullptr);
  static constexpr int kOnlyBell = -1000;
  // The number names another stream or another set now.
  static constexpr int kStale = -1001;
  // A wait that asks the kernel, from before its question to its end,
  // cancellation included.  The kernel gives an edge of the bell to one thread.
  // A thread that takes an edge, or has slept for all, hands the duty on when
  // it leaves.  If a handler jumps out of the wait, TakeBackWait has handed it
  // on before.
  class Leave {
   public:
    explicit Leave(EpollSet* set)
        : life(set->life_.load(std::memory_order_seq_cst)),
          signals(tls_signals.any),
          set_(set) {
      // Left by a handler that jumped out of a wait past TakeBackWait.
      if (__builtin_expect(tls_signals.wait.set != nullptr, 0)) TakeBackWait();
    }
    ~Leave() {
      if (__builtin_expect(owes_ || unlooked, 0)) set_->HandOn(unlooked);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      tls_signals.wait.set = nullptr;
    }
    Leave(const Leave&) = delete;
    Leave& operator=(const Leave&) = delete;

    // Whether `number` still names this life of the set.  Since fd_table was
    // read, the set may have been closed and reused.
    bool Right(int number) const {
      return set_->IsAt(number) &&
             set_->life_.load(std::memory_order_seq_cst) == life;
    }

    // The thread is about to ask the kernel, which may give it an edge.
    void Ask() {
      tls_signals.wait.set = set_;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    // The thread is about to sleep for others.  A thread that takes an edge
    // owes as well (Looked).
    void Owe() {
      owes_ = true;
      Ask();
    }
    // The thread has looked behind its edge, or woken another thread that will.
    void Looked() {
      owes_ |= unlooked;
      unlooked = false;
    }

    // The result of a wait whose set has been closed meanwhile.
    [[gnu::cold, gnu::noinline]] int Closed() {
      Looked();
      errno = EBADF;
      return -1;
    }

    // The thread has an edge, and no thread has made the look that the edge
    // calls for.  That look comes behind a new generation, so that it sees the
    // posts of all senders that saw the old generation.
    bool unlooked = false;
    // How often the set had been closed before.
    const std::uint32_t life;
    // How many handlers had run before the wait.  If a handler runs while the
    // bell wakes the thread, the kernel does not report the handler.  The count
    // then ends the wait.
    const std::uint32_t signals;

   private:
    EpollSet* const set_;
    bool owes_ = false;
  };
  // A thread that sleeps in the kernel's part alone, because no stream is in
  // user space.  The thread counts as no sleeper, and has armed nothing.  When
  // the first stream comes, only one such thread is woken.  Lives within a
  // Leave.
  class Stranger {
   public:
    // If a handler jumps away between the count and its note, the count stays
    // too high by 1.  That costs a kick for nothing now and then.  `again`: see
    // CountedWait.
    explicit Stranger(EpollSet* set, bool again = false) : set_(set) {
      set_->strangers_.fetch_add(1, std::memory_order_seq_cst);
      tls_signals.wait.again = again;
      tls_signals.wait.stranger = true;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    // Runs on cancellation, too.
    ~Stranger() {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      // The thread ends from within a handler.
      if (!tls_signals.wait.stranger) return;
      tls_signals.wait.stranger = false;
      set_->strangers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;
    // Asked after the thread has been counted, before it sleeps.
    bool MaySleep() const {
      return set_->user_count_.load(std::memory_order_seq_cst) == 0;
    }

   private:
    EpollSet* const set_;
  };
  // Take back the thread's counts before a handler runs above a wait, and add
  // them again after the handler.  The handler may jump out of the wait.
  void TakeBack(const CountedWait& wait);
  void Recount(const CountedWait& wait);
  // `unlooked`: the thread has an edge of the bell, and no thread has looked
  // behind it.
  void HandOn(bool unlooked);
  // Another process has the set, and cannot see readiness in this process.  The
  // set's streams stay on TCP.
  void SetNested();
  // A thread is about to wait for the set by its number, with another epoll set
  // or with a ring.  `edges`: with EPOLLET.  If this returns true, the kernel
  // knows from now on whether the set is readable.  If it returns false, the
  // kernel cannot know.
  bool SeenFromOutside(bool edges = false)
      RC_EXCLUDES(wait_latch_, interest_latch);
  // The form for poll() and select(), which look themselves at a set with
  // streams in user space.  Returns whether the set has any.
  bool LookedAtFromOutside() {
    if (!SeenFromOutside()) SetNested();
    UpdateMirrors();
    return HasUser();
  }
  // The conductor looks whether the set's thread is outside every wait
  // (epoll_away.cc), and sets `*away` then.  Returns false if the conductor
  // need not look again soon.
  bool NoteAway(std::uint32_t ms, bool* away) RC_EXCLUDES(wait_latch_);
  // Brings the mirror up to date (epoll_mirror.cc).
  void UpdateMirror(bool rang) RC_EXCLUDES(wait_latch_, interest_latch);
  // For the conductor, when the bell has rung.  False: a thread holds the set.
  bool TryUpdateMirror() RC_EXCLUDES(wait_latch_, interest_latch);
  Mirror* mirror() { return &mirror_; }

  std::uint32_t moves() const { return moves_.load(std::memory_order_seq_cst); }
  void Moved() { moves_.fetch_add(1, std::memory_order_seq_cst); }
  bool HasUser() const {
    return user_count_.load(std::memory_order_acquire) > 0;
  }
  bool Heats() const { return heats_.load(std::memory_order_relaxed); }
  // BeginOnceMove and EndOnceMove bracket the move of a ONESHOT registration
  // out of the kernel's set.  ToldByLane checks what a wait that began before
  // the move brings back.  The caller holds the interest latch meanwhile.
  void BeginOnceMove() RC_REQUIRES(interest_latch) {
    once_moved_.store(moves() + (1u << 30), std::memory_order_seq_cst);
  }
  std::uint32_t EndOnceMove() RC_REQUIRES(interest_latch) {
    return once_moved_ = moves_.fetch_add(1) + 1;
  }
  // A ONESHOT registration leaves user space, or TakeOnce takes it.
  void OnceLeaves() RC_REQUIRES(interest_latch);
  void MarkDirty() { dirty_.store(true, std::memory_order_seq_cst); }
  void AddLink(const std::shared_ptr<lane::shm::Link>& link);
  void AddSource(lane::Source* source) RC_REQUIRES(interest_latch);
  int source_count() const {
    return source_count_.load(std::memory_order_acquire);
  }
  lane::Source* source(int i) const {
    return sources_[i].load(std::memory_order_acquire);
  }
  void KickBell();
  void DropRegistered() RC_REQUIRES(interest_latch) { --registered_; }
  int fd() const { return fd_.load(std::memory_order_relaxed); }
  // If this returns true, that holds while the caller holds the wait latch
  // (Free) or the interest latch, or is counted in the set.
  bool IsAt(int number) const {
    if (fd() == number) [[likely]]
      return true;
    return IsAtToo(number);
  }
  // `number`, a number of the set, is about to be closed.  Other threads move
  // registrations between the two sides with the interest latch.  After this
  // call their moves are complete, so none of them touches the file that gets
  // the number next.
  void LoseFd(int number);
  // In the child of fork: the set has another number from now on.
  void Renumber(int fd) { set_fd(fd); }
  int bell() const { return poller_ ? poller_->bell() : -1; }

 private:
  friend struct Registry;
  friend class AwaySets;
  struct Direct {
    Interest* interest;
    Sock* sock;
    lane::Lane* lane;
  };
  static constexpr int kMostDirect = 64;
  // A registration that asks for EPOLLIN alone of these, level-triggered,
  // reports nothing else while there is input.
  static constexpr std::uint32_t kAsked =
      EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLONESHOT |
      EPOLLRDHUP | static_cast<std::uint32_t>(EPOLLET);
  static constexpr std::uint32_t kReadable = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
  static constexpr std::uint32_t kDirectLooks = 32;
  // In a large set only hot streams are direct.  All others have bits, so every
  // wait looks at these (I-FAIR-1).
  static constexpr std::uint32_t kHotLooks = 1;
  // The weight of a look that finds no hot stream, or that is part of a look at
  // the kernel.
  static constexpr std::uint32_t kColdLooks = 8;
  // After a wait has found streams that are not hot, so many waits begin with a
  // look at all streams.
  static constexpr std::uint32_t kColdFor = 8;

  [[gnu::cold, gnu::noinline]] bool IsAtToo(int number) const {
    return Named(number) == this;
  }
  // Looks in a turn of a short wait.
  static constexpr int kQuickLooks = 8;
  static bool AwaitOne(const lane::Lane* lane, int looks);
  void AwaitDirect(int looks) RC_REQUIRES(wait_latch_);
  int LookAtFew(int fd, epoll_event* out, int capacity, bool may_wait,
                bool due = false) RC_EXCLUDES(wait_latch_);
  [[gnu::noinline]] int WaitBehindKernel(int fd, epoll_event* out, int capacity,
                                         int timeout);
  int LookAtHot(int fd, epoll_event* out, int capacity, bool may_wait)
      RC_EXCLUDES(wait_latch_);
  [[gnu::noinline]] int QuickMany(int fd, epoll_event* out, int capacity,
                                  int timeout);
  bool TellOne(const Direct& direct, epoll_event* out) RC_REQUIRES(wait_latch_);
  [[gnu::cold]] void Untold(Interest* interest);
  int TellFew(epoll_event* out, int capacity) RC_REQUIRES(wait_latch_);
  [[gnu::noinline]] std::uint32_t Tells(const Direct& direct,
                                        std::uint64_t* data)
      RC_REQUIRES(wait_latch_);
  void Rebuild() RC_REQUIRES(wait_latch_) {
    if (dirty_.load(std::memory_order_acquire)) [[unlikely]]
      RebuildNow();
  }
  [[gnu::noinline]] void RebuildNow() RC_REQUIRES(wait_latch_);
  void LeaveDirect() RC_EXCLUDES(wait_latch_);
  void Report(Interest* interest, Sock* sock) RC_REQUIRES(wait_latch_);
  [[gnu::noinline]] void Heat(Interest* interest, Sock* sock)
      RC_REQUIRES(wait_latch_);
  bool SetMarks(const Direct& direct, bool on);
  // By distance: some waits count twice, so the count might never meet a
  // multiple.
  bool CoolDue() const RC_REQUIRES(wait_latch_) {
    return wait_number_ - cooled_ >= kCoolWaits;
  }
  void Cool() RC_REQUIRES(wait_latch_);
  bool LooksAt(const Interest* interest, const Sock* sock) const
      RC_REQUIRES(interest_latch);
  // The ready list.  Enlist and Delist return the change of the count, and
  // leave ready_count_ to the caller.  The caller changes ready_count_ once for
  // many registrations, before it releases the latch.
  void LinkReady(Interest* interest) RC_REQUIRES(ready_latch_);
  void UnlinkReady(Interest* interest) RC_REQUIRES(ready_latch_);
  int Enlist(Interest* interest) RC_REQUIRES(ready_latch_);
  int EnlistFirst(Interest* interest) RC_REQUIRES(ready_latch_);
  int Delist(Interest* interest) RC_REQUIRES(ready_latch_);
  // A thread that adds to the list looks for sleepers behind its count
  // (Registry::KickSleepers), and so needs a fence.  A thread that takes off
  // the list does not.
  void ListShrinks(int by) RC_REQUIRES(ready_latch_) {
    ready_count_.store(ready_count_.load(std::memory_order_relaxed) - by,
                       std::memory_order_relaxed);
  }
  // Adds the looks since idle_since_ to this thread's SpinBudget.  `allowed`:
  // the thread might spin.
  void EndIdle(bool found, bool allowed = true);
  // Looks for Look: once, or for so many ticks.  `now` gets the clock, if it
  // was read.
  int LookFor(epoll_event* out, int capacity, std::uint64_t ticks,
              std::uint64_t* now);
  [[gnu::noinline]] int TellDirect(epoll_event* out, int capacity)
      RC_REQUIRES(wait_latch_);
  [[gnu::noinline]] int TellInOrder(epoll_event* out, int capacity)
      RC_REQUIRES(wait_latch_);
  bool AnyDirect() RC_REQUIRES(wait_latch_);
  // Registrations that message arrivals have put on the list.
  struct Fresh {
    static constexpr int kMost = 64;
    int count = 0;
    Interest* interests[kMost];
  };
  // Returns how many registrations it has put on the list.
  [[gnu::noinline]] int DrainPoller(Fresh* fresh = nullptr)
      RC_REQUIRES(wait_latch_);
  int TellFresh(const Fresh& fresh, epoll_event* out, int capacity)
      RC_REQUIRES(wait_latch_);
  void DrainSources();
  struct Batch;
  enum class Listed;
  int Collect(epoll_event* out, int capacity) RC_REQUIRES(wait_latch_);
  void TakeListed(Batch* batch, int most) RC_REQUIRES(wait_latch_)
      RC_EXCLUDES(ready_latch_);
  Listed TellListed(Interest* interest, epoll_event* out)
      RC_REQUIRES(wait_latch_);
  static bool TakeEdge(Interest* interest, Sock* sock)
      RC_EXCLUDES(interest_latch);
  [[gnu::noinline]] static void ListAnew(Interest* interest)
      RC_EXCLUDES(interest_latch);
  void PutBack(const Batch& batch) RC_REQUIRES(wait_latch_)
      RC_EXCLUDES(ready_latch_);
  bool Spend(Interest* interest, const Sock* sock, std::uint32_t armings,
             std::uint64_t* data);
  class CtlCall;
  // What a change of a registration leaves to do without the latch.
  struct CtlRest {
    bool kick = false;    // a sleeper has to look
    bool notify = false;  // what the lane is asked to tell may have changed
  };
  bool MayChange(int number, int op, int fd, const Sock* sock) const
      RC_REQUIRES(interest_latch);
  static bool FoundAnyway(const Interest* interest) RC_REQUIRES(interest_latch);
  static CtlRest Arm(Interest* interest, const epoll_event& event)
      RC_REQUIRES(interest_latch);
  bool KernelChange(int op, int fd, Sock* sock, Interest* found,
                    epoll_event* event, int* result)
      RC_REQUIRES(interest_latch);
  int CtlNow(int number, int op, int fd, Sock* sock, epoll_event* event);
  bool QuickChange(int op, Interest* interest, const epoll_event* event,
                   CtlRest* rest) RC_REQUIRES(interest_latch);
  void AfterChange(const CtlRest& rest, Sock* sock) RC_EXCLUDES(interest_latch);
  [[gnu::noinline]] int LongCtl(int op, int fd, Sock* sock, epoll_event* event,
                                Interest* found) RC_RELEASE(interest_latch);
  bool SomethingReady() RC_REQUIRES(wait_latch_);
  void UpdateMirrorLatched(bool rang) RC_REQUIRES(wait_latch_)
      RC_EXCLUDES(interest_latch);
  bool HasEvents() RC_REQUIRES(wait_latch_);
  bool HasEvent(Interest* interest) RC_REQUIRES(wait_latch_);
  bool AnyListed() RC_REQUIRES(wait_latch_);
  bool HasUnread() RC_EXCLUDES(interest_latch);
  static constexpr std::uint64_t kKernelLookUs = 50;
  bool TimeForKernel();
  bool KernelDue();
  [[gnu::cold]] bool TurnOfLocalTcp();
  bool KernelDueNext() const;
  static bool After(std::uint32_t count, std::uint32_t before) {
    return static_cast<std::int32_t>(count - before) > 0;
  }
  bool ToldByLane(const epoll_event& event, std::uint32_t before);
  int DirectRoom(int room) RC_REQUIRES(wait_latch_);
  class Sleep;
  class WaitCall;
  bool LeavesWork() RC_REQUIRES(wait_latch_) {
    return sleepers_.load(std::memory_order_seq_cst) != 0 && LeavesSome();
  }
  [[gnu::noinline]] bool LeavesSome() RC_REQUIRES(wait_latch_);
  bool NothingBehind() RC_EXCLUDES(wait_latch_);
  void EndWait(int count, Leave* leave) RC_EXCLUDES(wait_latch_);
  int DrainAndCollect(epoll_event* out, int capacity) RC_REQUIRES(wait_latch_);
  [[gnu::cold]] int FaultOfKernel(std::uint32_t before, bool* bell);
  // Whether local TCP has had news lately.
  bool LocalTcpTells() const {
    return local_tcp_.load(std::memory_order_relaxed) > 0 &&
           local_recent_.load(std::memory_order_relaxed);
  }
  // Whether the kernel must be asked before the lanes report.  With room for
  // one event the two sides take turns instead (TurnOfLocalTcp).
  bool InOrderWithKernel(int capacity) const {
    return LocalTcpTells() && capacity > 1;
  }
  static constexpr std::uint64_t kRecentUs = 1'000'000;
  static std::size_t LocalSlot(std::uint64_t data) {
    return static_cast<std::size_t>(data * 0x9e3779b97f4a7c15u >> 56);
  }
  void CountLocal(std::uint64_t data, bool counts) RC_REQUIRES(interest_latch);
  void LocalNews();
  void NoLocalNews();
  bool Peek(bool all) RC_REQUIRES(wait_latch_);
  bool LanesWereEmpty() const;
  void ArmAwake() RC_REQUIRES(wait_latch_);
  void DisarmAwake() RC_REQUIRES(wait_latch_);
  void WatchAway() RC_EXCLUDES(interest_latch) {
    if (Mixes()) [[unlikely]]
      WatchAwayNow();
  }
  [[gnu::noinline]] void WatchAwayNow() RC_EXCLUDES(interest_latch);
  // Whether more than one descriptor of the set may have events whose order is
  // known.
  bool Mixes() const {
    const int users = user_count_.load(std::memory_order_relaxed);
    return users > 0 && !crowded_.load(std::memory_order_relaxed) &&
           (users > 1 || local_tcp_.load(std::memory_order_relaxed) > 0);
  }
  static constexpr std::uint64_t kSoonUs = 4;
  int WithLanes(epoll_event* out, int kernels, int capacity, int ahead,
                std::uint32_t moves, Leave* leave);
  bool LookBeforeSleep(std::uint64_t since);
  int KernelWait(epoll_event* out, int capacity, std::int64_t timeout_ns,
                 const sigset_t* mask, bool* bell = nullptr,
                 int* ahead = nullptr);
  void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }
  // The fields that each wait looks at stand together.
  std::atomic<int> fd_{-1};
  std::atomic<int> user_count_{0};
  std::atomic<int> ready_count_{0};
  std::atomic<bool> dirty_{false};
  // The set has more streams than direct looks can serve.  All use the bitmaps.
  std::atomic<bool> crowded_{false};
  // In a crowded set, the streams that were direct before use bitmaps.  The
  // direct streams are then the hot ones: few, and reported again and again.
  // Each wait looks at the hot streams, which keep their bits at first.  So hot
  // streams do not pay for the thousands of others.  Written with the interest
  // latch.
  std::atomic<bool> heats_{false};
  // How many registrations are the kernel's and have their peer on this host.
  // Their events and those of the lanes are reported in order.  Written with
  // the interest latch.
  std::atomic<int> local_tcp_{0};
  // One of local_tcp_ has had news lately: it was added, it was armed anew, or
  // the kernel reported it.  So a pool of silent connections costs the lanes no
  // system calls.
  std::atomic<bool> local_recent_{false};
  // If there is room for one event: the ready list has its turn.
  bool list_turn_ RC_GUARDED_BY(wait_latch_) = false;
  // Counts waits, for the next look at the kernel's part.  No latch guards it.
  std::atomic<std::uint32_t> waits_{0};
  std::uint32_t wait_number_ RC_GUARDED_BY(wait_latch_) = 0;
  // Looks at direct streams since the last look at the bitmaps.
  std::uint32_t undrained_ RC_GUARDED_BY(wait_latch_) = 0;
  int direct_count_ RC_GUARDED_BY(wait_latch_) = 0;
  // The first stream that had no room in the last look.
  int direct_next_ RC_GUARDED_BY(wait_latch_) = 0;
  // kColdFor, less the waits since then that have reported hot streams.
  std::uint32_t cold_ RC_GUARDED_BY(wait_latch_) = 0;
  std::atomic<int> sleepers_{0};
  std::atomic<int> strangers_{0};
  base::Latch wait_latch_{base::LatchRank::kWait};
  base::Latch ready_latch_{base::LatchRank::kReady};
  Interest* members_ RC_GUARDED_BY(interest_latch) = nullptr;  // in user space
  Interest* ready_head_ RC_GUARDED_BY(ready_latch_) = nullptr;
  Interest* ready_tail_ RC_GUARDED_BY(ready_latch_) = nullptr;
  Direct direct_[kMostDirect] RC_GUARDED_BY(wait_latch_);
  std::atomic<bool> ever_user_{false};
  // Counts registrations that leave the kernel.  If a registration leaves
  // during a wait, both sides could report its events.
  std::atomic<std::uint32_t> moves_{0};
  std::atomic<std::uint32_t> once_moved_{0};  // the last move of a ONESHOT
  std::uint32_t once_left_at_ RC_GUARDED_BY(interest_latch) = 0;
  std::atomic<bool> nested_{false};
  // A caller arms the set from outside, so the set may be inside another set.
  std::atomic<bool> outside_{false};
  std::uint32_t copies_ = 0;  // see New
  Mirror mirror_;
  KeptTimer timer_;
  std::atomic<std::uint32_t> life_{0};  // how often it has been closed
  // The registrations that are direct.
  Interest* direct_members_[kMostDirect] RC_GUARDED_BY(interest_latch) = {};
  int direct_used_ RC_GUARDED_BY(interest_latch) = 0;
  static constexpr int kMostHot = 32;
  static constexpr std::uint32_t kHotWaits = 16;    // between two reports
  static constexpr std::uint8_t kHotReports = 3;    // so many in a row
  static constexpr std::uint32_t kCoolWaits = 128;  // between two calls of Cool
  static constexpr std::uint32_t kRestWaits = 4096;
  // Registrations of streams on both sides.
  int registered_ RC_GUARDED_BY(interest_latch) = 0;
  std::unique_ptr<lane::shm::ShmPoller> poller_;
  lane::Board* board_ = nullptr;
  bool bell_in_kernel_ = false;
  // The first stream has come into user space, and MoveAll has yet to kick.
  bool first_came_ RC_GUARDED_BY(interest_latch) = false;
  // The sources of its streams' lanes.  The kernel's part holds them beside the
  // bell.  Sources live as long as the process.
  static constexpr int kMostSources = 128;
  std::atomic<lane::Source*> sources_[kMostSources] = {};
  std::atomic<int> source_count_{0};
  // Events that direct looks have found.
  std::uint32_t hot_hits_ RC_GUARDED_BY(wait_latch_) = 0;
  // The last wait that called Cool.
  std::uint32_t cooled_ RC_GUARDED_BY(wait_latch_) = 0;
  // For kRestWaits from here no stream becomes hot.
  std::uint32_t rest_from_ RC_GUARDED_BY(wait_latch_) = 0;
  bool rests_ RC_GUARDED_BY(wait_latch_) = false;
  std::atomic<std::uint64_t> kernel_look_{0};  // ticks of the last look
  // State from ArmOutside for DisarmOutside.
  bool armed_outside_ = false;
  bool armed_poller_ = false;
  int armed_sources_ = 0;
  lane::Source* armed_source_[kMostSources] = {};
  std::uint64_t armed_since_ = 0;
  std::atomic<std::uint64_t> idle_since_{0};  // ticks; for Look
  EpollSet* pool_next_ RC_GUARDED_BY(interest_latch) = nullptr;
  // When a thread began to sleep, in ticks; 0 once something has been reported.
  std::uint64_t slept_since_ RC_GUARDED_BY(wait_latch_) = 0;
  // A bit for each direct stream that had something before the thread began to
  // sleep.
  std::uint64_t came_before_ RC_GUARDED_BY(wait_latch_) = 0;
  // The first wait that has reported some, but not all, of what came since the
  // thread began to sleep.
  std::uint32_t order_wait_ RC_GUARDED_BY(wait_latch_) = 0;
  // For NoteAway.
  std::atomic<bool> away_watched_{false};
  bool away_listed_ RC_GUARDED_BY(interest_latch) = false;
  std::uint32_t away_number_ RC_GUARDED_BY(wait_latch_) = 0;
  // Written before the set is in the list.
  EpollSet* away_next_ = nullptr;
  std::atomic<std::uint64_t> lanes_empty_at_{0};  // ticks; last empty Peek
  bool armed_awake_ RC_GUARDED_BY(wait_latch_) = false;
  std::atomic<std::uint64_t> local_news_at_{0};  // ticks
  // For each hash of data, how many of local_tcp_ have it.  The kernel names a
  // registration by its data alone.
  std::atomic<std::uint32_t> local_data_[256] = {};
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_EPOLL_H_
