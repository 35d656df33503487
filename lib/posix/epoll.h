#ifndef RCSOCK_LIB_POSIX_EPOLL_H_
#define RCSOCK_LIB_POSIX_EPOLL_H_

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
#include "lib/posix/epoll_mirror.h"
#include "lib/posix/file.h"
#include "lib/posix/interest_latch.h"
#include "lib/posix/signals.h"

namespace rcsock::posix {

class Sock;
class EpollSet;

// Written with the interest latch.  A wait reads it with its own latch alone,
// beside a thread that closes what it points to, or the set: what it has found
// on its list it looks at once, and asks again where another one's would
// matter.
template <class T>
class Loose {
 public:
  Loose& operator=(T* to) {
    at_.store(to, std::memory_order_relaxed);
    return *this;
  }
  operator T*() const { return at_.load(std::memory_order_relaxed); }
  T* operator->() const { return *this; }

 private:
  std::atomic<T*> at_{nullptr};
};

// One registration of a stream in an epoll set.  From a pool, never freed.
// While the stream is on TCP it is the kernel's (in_kernel); else it is in user
// space, and the kernel does not know it.
//
// What each report needs fits in one cache line.
struct alignas(64) Interest {
  Loose<EpollSet> set;  // null: free
  Loose<Sock> sock;
  std::atomic<std::uint64_t> data{0};  // epoll_data_t::u64
  std::atomic<std::uint32_t> events{0};
  std::uint32_t told = 0;  // the wait that has reported it without the list
  Interest* next_of_sock RC_GUARDED_BY(interest_latch) = nullptr;
  Interest* ready_next = nullptr;  // set's ready list
  Interest* ready_prev = nullptr;
  std::atomic<bool> ready{false};  // is on it; written with the list's latch
  bool in_kernel RC_GUARDED_BY(interest_latch) = false;
  std::atomic<bool> in_user{false};
  std::atomic<bool> spent{false};  // EPOLLONESHOT, reported
  std::atomic<bool> edge{false};   // EPOLLET: something has happened since the
                                   // last report
  // Deleted, but kept for the ADD that follows in programs that delete and add
  // for each request: it reports nothing and does not exist for epoll_ctl.
  std::atomic<bool> dormant{false};
  // Its lane is looked at in every wait; written with the interest latch.
  std::atomic<bool> direct{false};
  // Reports in a row, none long after the one before; the set's wait_latch's.
  std::uint8_t warm = 0;

  // EPOLLONESHOT: it was the kernel that reported it.
  bool told_by_kernel RC_GUARDED_BY(interest_latch) = false;
  // ... since it has left the kernel.
  bool armed_here RC_GUARDED_BY(interest_latch) = false;
  // ... is to be found out.
  bool asked RC_GUARDED_BY(interest_latch) = false;
  // In local_tcp_ of its set.
  bool counted RC_GUARDED_BY(interest_latch) = false;
  // The set's count when it left the kernel.
  std::uint32_t moved_at RC_GUARDED_BY(interest_latch) = 0;
  int fd RC_GUARDED_BY(interest_latch) = -1;
  Interest* next_of_set = nullptr;  // of the set's interests in user space
  Interest* prev_of_set RC_GUARDED_BY(interest_latch) = nullptr;
  // It has been in user space, where a wait may look at it without the latch.
  bool was_user RC_GUARDED_BY(interest_latch) = false;
  EpollSet* was_of = nullptr;  // while it is in a Lookers

  // Whether it is armed with what a look, which has no latch, has read of it.
  bool Is(std::uint32_t its_events, std::uint64_t its_data) const {
    return events.load(std::memory_order_relaxed) == its_events &&
           data.load(std::memory_order_relaxed) == its_data;
  }
};

namespace hook {
// epoll_wait, by no short way.
int LongEpoll(int fd, epoll_event* events, int capacity, int timeout);
}  // namespace hook

// What a wait of this thread has found could not be put where the program wants
// it.  (Or that of an earlier wait, which had told of others before.)
extern thread_local constinit bool tls_untold
    __attribute__((tls_model("initial-exec")));
inline bool NowhereToTell(epoll_event* out) {
  if (!tls_untold) [[likely]]
    return false;
  tls_untold = false;
  return !base::TryTell(out, 0, 0);
}

// An epoll instance of the application.
//
// Latches, in the order in which they may be taken: wait_latch, then a stream's
// tx and rx, then the process's interest latch, then ready_latch.
class EpollSet final : public File {
 public:
  EpollSet() : File(FileKind::kEpoll) {}
  static EpollSet* New(int fd);
  void Free();

  // No program has more room than that for events, nor less than for one.
  static bool MayHold(int capacity) {
    return capacity > 0 &&
           capacity <= std::numeric_limits<int>::max() /
                           static_cast<int>(sizeof(epoll_event));
  }
  // `number`: by which the set was found.
  int Ctl(int number, int op, int fd, Sock* sock, epoll_event* event);
  // Goes on with what has begun, maybe with an edge.
  class Leave;
  int Wait(Leave* leave, epoll_event* out, int capacity,
           std::int64_t timeout_ns, const sigset_t* mask);
  // epoll_wait, for what comes within a microsecond of the streams that are
  // looked at in every wait; else it ends with hook::LongEpoll.
  int QuickWait(int fd, epoll_event* out, int capacity, int timeout);
  // True if Wait would find a stream ready: for an epoll fd inside poll().
  bool AnyReady();

  // --- For an event loop that is not ours and has this set in its own
  // (epoll_nested.cc); one thread at a time.
  // What the lanes have; the kernel is not asked.  Spins at most so long.
  // -1 with errno: ENODATA: no stream of the set is on a lane; EAGAIN: nothing,
  // and this thread has spun long enough.
  int Look(epoll_event* out, int capacity, std::uint32_t spin_us);
  // From now on the set's descriptor becomes readable when something comes.
  // False: something has, look first.
  bool ArmOutside();
  void DisarmOutside();

  // Has ever had a stream on a lane: its kernel set holds our bell.
  bool EverUser() const { return ever_user_.load(std::memory_order_acquire); }
  // What the kernel reported, in a wait that began when moves() was `before`,
  // without the bell and without what a lane has told of.
  // `ahead`: null, or kNoBell: then how many of them stand before the bell.
  static constexpr int kNoBell = -1;
  int OfKernel(epoll_event* events, int count, std::uint32_t before,
               bool* bell = nullptr, int* ahead = nullptr);
  static constexpr int kOnlyBell = -1000;
  // The number is another stream's by now, or another set's.
  static constexpr int kStale = -1001;
  // A wait that asks the kernel, from before it does to its end; by
  // cancellation too.  The kernel gives an edge of the bell to one thread:
  // whoever takes one, or has slept for all, hands on when it leaves.  A
  // handler that jumps out of it has done so before (TakeBackWait).
  class Leave {
   public:
    explicit Leave(EpollSet* set)
        : life(set->life_.load(std::memory_order_seq_cst)),
          signals(tls_signals.any),
          set_(set) {
      // (What somebody who jumped out of a wait otherwise has left.)
      if (__builtin_expect(tls_signals.wait.set != nullptr, 0)) TakeBackWait();
    }
    ~Leave() {
      if (__builtin_expect(owes_ || unlooked, 0)) set_->HandOn(unlooked);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      tls_signals.wait.set = nullptr;
    }
    Leave(const Leave&) = delete;
    Leave& operator=(const Leave&) = delete;

    // Whether the set is what the number names, in the life that the wait has
    // begun with.  (fd_table: since it was found there it may have become
    // another.)
    bool Right(int number) const {
      return set_->IsAt(number) &&
             set_->life_.load(std::memory_order_seq_cst) == life;
    }

    // It is about to ask the kernel, who may give it an edge.
    void Ask() {
      tls_signals.wait.set = set_;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    // It is about to sleep for others.  (Who takes an edge owes, too: Looked.)
    void Owe() {
      owes_ = true;
      Ask();
    }
    // It has looked behind it, or woken somebody who will.
    void Looked() {
      owes_ |= unlooked;
      unlooked = false;
    }

    // The set has been closed in the wait: its result.
    [[gnu::cold, gnu::noinline]] int Closed() {
      Looked();
      errno = EBADF;
      return -1;
    }

    // With an edge, behind which nobody has looked since in such a way that he
    // must have seen all whose senders have seen the old generation.
    bool unlooked = false;
    // How often the set had been closed before.
    const std::uint32_t life;
    // Handlers that had run before: one that runs while the bell wakes the
    // thread, and the kernel therefore does not tell of it, ends the wait.
    const std::uint32_t signals;

   private:
    EpollSet* const set_;
    bool owes_ = false;
  };
  // A thread that sleeps in the kernel's part alone, because no stream is in
  // user space: neither a sleeper nor has it armed anything, and of all such
  // only one is woken when the first stream comes.  Within a Leave.
  class Stranger {
   public:
    // (A handler that jumps away between the count and the note of it leaves
    // one too many: a kick for nothing now and then.)
    // `again`: see CountedWait.
    explicit Stranger(EpollSet* set, bool again = false) : set_(set) {
      set_->strangers_.fetch_add(1, std::memory_order_seq_cst);
      tls_signals.wait.again = again;
      tls_signals.wait.stranger = true;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    // By cancellation too.
    ~Stranger() {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      // (Out of a handler that ends the thread.)
      if (!tls_signals.wait.stranger) return;
      tls_signals.wait.stranger = false;
      set_->strangers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;
    // Asked after it has been counted, before the sleep.
    bool MaySleep() const {
      return set_->user_count_.load(std::memory_order_seq_cst) == 0;
    }

   private:
    EpollSet* const set_;
  };
  // A handler that runs above a wait may jump out of it: what the thread has
  // counted of itself is taken back before, and counted anew after.
  void TakeBack(const CountedWait& wait);
  void Recount(const CountedWait& wait);
  // `unlooked`: with an edge of the bell that nobody has looked behind.
  void HandOn(bool unlooked);
  // Another process has it, which can't see our readiness: its streams stay on
  // TCP.
  void SetNested();
  // Somebody is about to wait for the set by its number: another epoll set
  // (`edges`: with EPOLLET), or a ring.  The kernel then knows whether it is
  // readable.  False: it can't be told.
  bool SeenFromOutside(bool edges = false)
      RC_EXCLUDES(wait_latch_, interest_latch);
  // The same of poll() and select(), which ask a set that has streams in user
  // space themselves.  True: it has.
  bool LookedAtFromOutside() {
    if (!SeenFromOutside()) SetNested();
    UpdateMirrors();
    return HasUser();
  }
  // The conductor looks whether the set's thread is elsewhere
  // (epoll_away.cc).  False: it need not look again soon.
  bool NoteAway() RC_EXCLUDES(wait_latch_);
  // Brings the mirror up to date; see epoll_mirror.cc.
  void UpdateMirror(bool rang) RC_EXCLUDES(wait_latch_, interest_latch);
  // The conductor's, whose bell has rung.  False: a thread holds the set.
  bool TryUpdateMirror() RC_EXCLUDES(wait_latch_, interest_latch);
  Mirror* mirror() { return &mirror_; }

  std::uint32_t moves() const { return moves_.load(std::memory_order_seq_cst); }
  void Moved() { moves_.fetch_add(1, std::memory_order_seq_cst); }
  bool HasUser() const {
    return user_count_.load(std::memory_order_acquire) > 0;
  }
  bool Heats() const { return heats_.load(std::memory_order_relaxed); }
  // A ONESHOT registration is about to leave the kernel's set, and has: what a
  // wait brings back that began before it had, ToldByLane looks at.  The
  // interest latch held from the one to the other.
  void BeginOnceMove() RC_REQUIRES(interest_latch) {
    once_moved_.store(moves() + (1u << 30), std::memory_order_seq_cst);
  }
  std::uint32_t EndOnceMove() RC_REQUIRES(interest_latch) {
    const std::uint32_t at = moves_.fetch_add(1, std::memory_order_seq_cst) + 1;
    once_moved_.store(at, std::memory_order_seq_cst);
    return at;
  }
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
  // For good while the wait latch is held (Free), or the interest latch, or a
  // thread is counted in it.
  bool IsAt(int number) const {
    if (fd() == number) [[likely]]
      return true;
    return IsAtToo(number);
  }
  // A number of its is about to be closed.  Registrations that other threads
  // move between the two sides at this moment, with the interest latch, have
  // been moved by that: they are not taken from, or put into, what has the
  // number next.
  void LoseFd(int number);
  // In the child of fork: it goes by another one from now on.
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
  // Who asks for EPOLLIN alone of these is told of input, level-triggered, and
  // of nothing else while there is some.
  static constexpr std::uint32_t kAsked =
      EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLONESHOT |
      EPOLLRDHUP | static_cast<std::uint32_t>(EPOLLET);
  static constexpr std::uint32_t kReadable = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
  static constexpr std::uint32_t kDirectLooks = 32;
  // What one that finds no hot one, or comes with a look at the kernel, counts
  // for.
  static constexpr std::uint32_t kColdLooks = 8;
  // Waits after one that has found others, whose first look is at all.
  static constexpr std::uint32_t kColdFor = 8;

  [[gnu::cold, gnu::noinline]] bool IsAtToo(int number) const {
    return Named(number) == this;
  }
  int LookAtFew(int fd, epoll_event* out, int capacity, bool may_wait)
      RC_EXCLUDES(wait_latch_);
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
  // (By distance: some waits count for two, and might never meet a multiple.)
  bool CoolDue() const RC_REQUIRES(wait_latch_) {
    return wait_number_ - cooled_ >= kCoolWaits;
  }
  void Cool() RC_REQUIRES(wait_latch_);
  bool LooksAt(const Interest* interest, const Sock* sock) const
      RC_REQUIRES(interest_latch);
  // The ready list.  Enlist and Delist leave the count to the caller, who
  // changes it once for many before he lets go of the latch; how many they
  // were.
  void LinkReady(Interest* interest) RC_REQUIRES(ready_latch_);
  void UnlinkReady(Interest* interest) RC_REQUIRES(ready_latch_);
  int Enlist(Interest* interest) RC_REQUIRES(ready_latch_);
  int EnlistFirst(Interest* interest) RC_REQUIRES(ready_latch_);
  int Delist(Interest* interest) RC_REQUIRES(ready_latch_);
  // One look, or looks for so many ticks: Look's.  The clock, if it was read.
  int LookFor(epoll_event* out, int capacity, std::uint64_t ticks,
              std::uint64_t* now);
  [[gnu::noinline]] int TellDirect(epoll_event* out, int capacity)
      RC_REQUIRES(wait_latch_);
  [[gnu::noinline]] int TellInOrder(epoll_event* out, int capacity)
      RC_REQUIRES(wait_latch_);
  bool AnyDirect() RC_REQUIRES(wait_latch_);
  // Registrations that have come onto the list for something that has landed.
  struct Fresh {
    static constexpr int kMost = 64;
    int count = 0;
    Interest* interests[kMost];
  };
  // How many it has put on the list.
  [[gnu::noinline]] int DrainPoller(Fresh* fresh = nullptr)
      RC_REQUIRES(wait_latch_);
  int TellFresh(const Fresh& fresh, epoll_event* out, int capacity)
      RC_REQUIRES(wait_latch_);
  void DrainSources();
  int Collect(epoll_event* out, int capacity) RC_REQUIRES(wait_latch_);
  bool Spend(Interest* interest, const Sock* sock, std::uint32_t events,
             std::uint64_t* data);
  bool FoundAnyway(const Interest* interest) RC_REQUIRES(interest_latch);
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
  bool KernelDueNext() const;
  static bool After(std::uint32_t count, std::uint32_t before) {
    return static_cast<std::int32_t>(count - before) > 0;
  }
  bool ToldByLane(const epoll_event& event, std::uint32_t before);
  int DirectRoom(int room) RC_REQUIRES(wait_latch_);
  class Sleep;
  bool LeavesWork() RC_REQUIRES(wait_latch_) {
    return sleepers_.load(std::memory_order_seq_cst) != 0 && LeavesSome();
  }
  [[gnu::noinline]] bool LeavesSome() RC_REQUIRES(wait_latch_);
  bool NothingBehind() RC_EXCLUDES(wait_latch_);
  int DrainAndCollect(epoll_event* out, int capacity) RC_REQUIRES(wait_latch_);
  [[gnu::cold]] int FaultOfKernel(std::uint32_t before, bool* bell);
  // The lanes tell nothing before the kernel has been asked.  (Not where there
  // is room for one event: then each of the two must have its turn.)
  bool InOrderWithKernel(int capacity) const {
    return local_tcp_.load(std::memory_order_relaxed) > 0 &&
           local_recent_.load(std::memory_order_relaxed) && capacity > 1;
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
  // More than one of its descriptors may have something whose order is known.
  bool Mixes() const {
    const int users = user_count_.load(std::memory_order_relaxed);
    return users > 0 && !crowded_.load(std::memory_order_relaxed) &&
           (users > 1 || local_tcp_.load(std::memory_order_relaxed) > 0);
  }
  static constexpr std::uint64_t kSoonUs = 4;
  int WithLanes(epoll_event* out, int kernels, int capacity, int ahead,
                std::uint32_t moves, Leave* leave);
  bool LookBeforeSleep(bool nap, std::uint64_t since);
  int KernelWait(epoll_event* out, int capacity, std::int64_t timeout_ns,
                 const sigset_t* mask, bool* bell = nullptr,
                 int* ahead = nullptr);

  void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }

  // What each wait looks at comes first, side by side.
  std::atomic<int> fd_{-1};
  std::atomic<int> user_count_{0};
  std::atomic<int> ready_count_{0};
  std::atomic<bool> dirty_{false};
  // There are more streams than can be looked at directly: all use the bitmaps.
  std::atomic<bool> crowded_{false};
  // ... and those that were direct before do so by now.  From here on the
  // direct ones are the hot ones: few that are reported again and again, and
  // are looked at in every wait, at first although they have their bits.  What
  // the other thousands cost, these do not pay.  Written with the interest
  // latch.
  std::atomic<bool> heats_{false};
  // Registrations of streams that are the kernel's and have their peer on this
  // host: what comes to these and what comes to the lanes is told in order.
  // Written with the interest latch.
  std::atomic<int> local_tcp_{0};
  // ... as long as one of them has had news lately: it has come, has been armed
  // anew, or the kernel has told of it.  (A pool of silent ones costs the lanes
  // no system calls.)
  std::atomic<bool> local_recent_{false};
  // Where there is room for one event: the ready list's turn.
  bool list_turn_ RC_GUARDED_BY(wait_latch_) = false;
  // When to look at the kernel's part of the set again; nobody's.
  std::atomic<std::uint32_t> waits_{0};
  std::uint32_t wait_number_ RC_GUARDED_BY(wait_latch_) = 0;
  // Looks since the last at the bitmaps.
  std::uint32_t undrained_ RC_GUARDED_BY(wait_latch_) = 0;
  int direct_count_ RC_GUARDED_BY(wait_latch_) = 0;
  // The first that had no room in the last look.
  int direct_next_ RC_GUARDED_BY(wait_latch_) = 0;
  // kColdFor, less what has told of hot ones since.
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
  // Registrations that have left the kernel: one that does so during a wait
  // could be reported by both.
  std::atomic<std::uint32_t> moves_{0};
  std::atomic<std::uint32_t> once_moved_{0};  // the last of them: a ONESHOT one
  std::atomic<bool> nested_{false};
  Mirror mirror_;
  std::atomic<std::uint32_t> life_{0};  // how often it has been closed
  // Registrations that are direct.
  Interest* direct_members_[kMostDirect] RC_GUARDED_BY(interest_latch) = {};
  int direct_used_ RC_GUARDED_BY(interest_latch) = 0;
  static constexpr int kMostHot = 32;
  static constexpr std::uint32_t kHotWaits = 16;    // from report to report
  static constexpr std::uint8_t kHotReports = 3;    // ... so many in a row
  static constexpr std::uint32_t kCoolWaits = 128;  // between looks at them
  static constexpr std::uint32_t kRestWaits = 4096;
  // Registrations of streams, on either side.
  int registered_ RC_GUARDED_BY(interest_latch) = 0;
  std::unique_ptr<lane::shm::ShmPoller> poller_;
  lane::Board* board_ = nullptr;
  bool bell_in_kernel_ = false;
  // What the lanes of its streams come from; in the kernel's set, beside the
  // bell.  Sources live as long as the process.
  static constexpr int kMostSources = 128;
  std::atomic<lane::Source*> sources_[kMostSources] = {};
  std::atomic<int> source_count_{0};
  // Events that the direct looks have found.
  std::uint32_t hot_hits_ RC_GUARDED_BY(wait_latch_) = 0;
  // The wait that has asked who still is hot.
  std::uint32_t cooled_ RC_GUARDED_BY(wait_latch_) = 0;
  // None becomes hot for kRestWaits from here.
  std::uint32_t rest_from_ RC_GUARDED_BY(wait_latch_) = 0;
  bool rests_ RC_GUARDED_BY(wait_latch_) = false;
  std::atomic<std::uint64_t> kernel_look_{0};  // ticks of the last look
  // Somebody arms it from outside, so it may be inside another set.
  std::atomic<bool> outside_{false};
  // ArmOutside's, for the Disarm that follows.
  bool armed_outside_ = false;
  bool armed_poller_ = false;
  int armed_sources_ = 0;
  lane::Source* armed_source_[kMostSources] = {};
  std::uint64_t armed_since_ = 0;
  std::atomic<std::uint64_t> idle_since_{0};  // ticks; of Look
  // The last yield of Look's has brought what was waited for.
  std::atomic<bool> shares_cpu_{false};
  EpollSet* pool_next_ RC_GUARDED_BY(interest_latch) = nullptr;
  // Ticks when a thread began to sleep, until something has been told since.
  std::uint64_t slept_since_ RC_GUARDED_BY(wait_latch_) = 0;
  // The direct streams that had something before: a bit for each.
  std::uint64_t came_before_ RC_GUARDED_BY(wait_latch_) = 0;
  // The first wait that has told some of what came since then, but not all.
  std::uint32_t order_wait_ RC_GUARDED_BY(wait_latch_) = 0;
  // NoteAway's.
  std::atomic<bool> away_watched_{false};
  bool away_listed_ RC_GUARDED_BY(interest_latch) = false;
  std::uint32_t away_number_ RC_GUARDED_BY(wait_latch_) = 0;
  // Of the one thread that looks.
  int away_quiet_ = 0;
  // Written before the set is in the list.
  EpollSet* away_next_ = nullptr;
  std::atomic<std::uint64_t> lanes_empty_at_{0};  // ticks; Peek's last nothing
  bool armed_awake_ RC_GUARDED_BY(wait_latch_) = false;
  std::atomic<std::uint64_t> local_news_at_{0};  // ticks
  // How many of local_tcp_ have data that hashes to this: what the kernel tells
  // has no other name.
  std::atomic<std::uint32_t> local_data_[256] = {};
};

// Moves an adopted stream's registrations out of the kernel's sets.  False:
// soon, and then Sock::Moved is called.  No latch held.
bool InterestsToUser(Sock* sock);
// They have been moved.
bool InterestsInUser(const Sock* sock);
// Back, when the stream is plain again.  No latch held.
void InterestsToKernel(Sock* sock);
// The stream's lane has come or is about to go: who looks at it directly looks
// anew.  `barrier`: returns when nobody can be looking at the old one (then no
// latch may be held).
void InterestsRefresh(Sock* sock, bool barrier);
// Readiness may have changed: an edge for each registration.  `room`: it is
// only that more can be written, which is none for who asks for input alone.
void InterestsReady(Sock* sock, bool room = false);
// Whoever sleeps in one of its sets, on whatever side it is, looks again.
void InterestsKick(Sock* sock);
// It is known who its peer is.
void InterestsPeer(Sock* sock);
// A descriptor is closed (its last one: `fd` -1, all registrations).  `kept`: a
// number of it, which is about to be closed, if the open file lives on; else
// -1.
void InterestsDrop(Sock* sock, int fd, int kept = -1);
// Whether there is a registration under this number.
bool InterestsNamed(Sock* sock, int fd);
// Whether one is in a set that stays open across exec, where nobody will know
// of it.
bool InterestsKept(Sock* sock);
// The bell of the set that watches the stream, made if need be; `otherwise` if
// none does.
int InterestsBell(Sock* sock, int otherwise);
// The stream is the kernel's, but has unread bytes that the kernel does not
// know of: what `set` should report of them now; how many events.
int InterestsUnread(Sock* sock, EpollSet* set, epoll_event* out, int capacity);
// The notify bits and bell that the stream's registrations ask of its lane.
void InterestsNotify(Sock* sock);  // takes the stream's latches
// Around fork, and in its child.
void InterestsForkLock();
void InterestsForkUnlock(bool child);
void InterestsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_EPOLL_H_
