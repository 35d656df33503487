#ifndef RCSOCK_LIB_POSIX_THREAD_SIGNALS_H_
#define RCSOCK_LIB_POSIX_THREAD_SIGNALS_H_

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace rcsock::lane {
class Lane;
}

namespace rcsock::posix {

// What a thread that waits in an epoll set has counted for itself there.
struct CountedWait {
  void* set = nullptr;    // the EpollSet on which it must hand on
  bool stranger = false;  // it is one of that set's strangers
  bool sleeper = false;   // it is one of that set's sleepers
  bool again = false;     // a stranger that has been woken in this wait before
};

// What a signal handler must know of the thread that it interrupts.  The thread
// itself and its handlers alone use it.
//
// The kernel ends a sleeping call with EINTR, but a spin would not notice a
// signal.  And a handler that runs while its thread holds a latch could call
// back into that stream, or longjmp away with the latch held.  So sigaction
// wraps handlers.  Within a critical section the wrapper puts the signal off
// until the section's end.  Otherwise it counts the signal, and calls off a
// sleep that is about to begin.
struct ThreadSignals {
  volatile std::uint32_t depth = 0;       // critical sections entered
  volatile std::uint32_t pending = 0;     // signals put off
  volatile std::uint32_t interrupts = 0;  // handlers run without SA_RESTART
  volatile std::uint32_t any = 0;         // handlers run
  // The futex word on which this thread is about to sleep.  The handler
  // increments it, so that the sleep does not begin.
  std::atomic<std::uint32_t>* volatile word = nullptr;
  // As `word`, for a sleep on a lane's own word.
  lane::Lane* volatile lane = nullptr;
  // The count of sleepers that this thread's sleep has raised, and an address
  // in the sleeping frame.  A handler that jumps out of the sleep leaves them
  // here.
  std::atomic<int>* volatile counted = nullptr;
  const void* volatile frame = nullptr;
  // The counts of a wait on an epoll set.  A handler may jump away.  So the
  // counts are taken back before a handler runs, and added again when the
  // handler returns.  Counts that a wait finds here at its start are of a wait
  // that a handler has jumped out of.
  CountedWait wait;
  // The RecvInPlace of a call into whose memory the peer may write.  The
  // wrapper ends it before a handler runs, which may jump out of the call.
  void* volatile in_place = nullptr;
  // The frame that has called the innermost handler.
  const void* volatile handler = nullptr;
  // Sleeps that have begun and not ended.  If a handler sleeps, the count is
  // more than one.  After a handler has jumped out of sleeps, it is too high
  // for a while.
  volatile std::uint32_t asleep = 0;
  // The forks that this thread is the child of.  If a handler forked within a
  // sleep, the sleep's count is the parent's.
  volatile std::uint32_t forks = 0;
  // A longer list would take more of the static TLS that libc keeps for
  // libraries loaded late: 1,664 bytes.
  static constexpr std::uint32_t kMostDeferred = 6;
  struct Deferred {
    int number;
    siginfo_t info;
  } deferred[kMostDeferred] = {};
  // The list is all but full.  Every other signal is blocked until these are
  // delivered, and the kernel keeps them.
  volatile bool blocking = false;
  // The calls of this thread may receive in registered memory (RecvRegistered).
  // A handler begins with false, since it may jump away.
  bool registered = false;
  // What `any` was at the start of a call that sends part after part.  Set
  // while it sends a later part (Sock::kLater).
  volatile std::uint32_t begun = 0;
  // The signals that were blocked before in all of the contexts whose signals
  // were put off.
  volatile std::uint64_t mask = ~std::uint64_t{0};
};

extern thread_local constinit ThreadSignals tls_signals
    __attribute__((tls_model("initial-exec")));

// Functions of the rooms above, which this room does not call by name.  A room
// stores its own functions before they have anything to do, so the calls before
// main are served, too.  They do not change after.
struct SignalUsers {
  // Takes back the counts of tls_signals.wait, and leaves it empty.
  // EpollSet::New stores this and the next.
  std::atomic<CountedWait (*)()> take_back_wait{nullptr};
  // Counts anew when the handler has returned.
  std::atomic<void (*)(const CountedWait& wait)> recount_wait{nullptr};
  // Ends what tls_signals.in_place has lent.  RecvInPlace stores this.
  std::atomic<void (*)()> take_back_memory{nullptr};
  // HookedSigaction calls the next two with its latch held.  InitLastWords
  // stores them.  The program leaves `number` to its default action, and the
  // kernel knows that.
  std::atomic<void (*)(int number)> hide_default{nullptr};
  // Changes what the kernel says of `number` into what the program is to see.
  std::atomic<void (*)(int number, struct sigaction* action)> show_default{
      nullptr};
};
extern constinit SignalUsers signal_users;

// A later part of a call that sends by parts.  `signals` is what `any` was at
// the start.  A handler that sends by parts itself restores the value.  A
// handler that jumps out leaves a value that every call sets before it looks.
class LaterPart {
 public:
  explicit LaterPart(std::uint32_t signals) : before_(tls_signals.begun) {
    tls_signals.begun = signals;
  }
  ~LaterPart() { tls_signals.begun = before_; }
  LaterPart(const LaterPart&) = delete;
  LaterPart& operator=(const LaterPart&) = delete;

 private:
  const std::uint32_t before_;
};

// Queues the signals that were put off to this thread again.  Their handlers
// run before this returns.
void DeliverDeferred();

// Takes the place of a count of sleepers that is the parent's.  No thread reads
// this count.
inline constinit std::atomic<int> parents_sleepers{0};

// Undoes what a sleep has left that a handler jumped out of.  `here` is an
// address in the caller's frame.  A handler that runs during the sleep is
// further down the stack, and must not undo that sleep.
[[gnu::access(none, 1)]] void UndoSleep(const void* here);

// The count of one sleep, which the caller has raised.  The destructor lowers
// it, on cancellation too.
class CountedSleep {
 public:
  explicit CountedSleep(std::atomic<int>* count)
      : count_(count),
        outer_(tls_signals.counted),
        frame_(tls_signals.frame),
        forks_(tls_signals.forks) {
    tls_signals.frame = this;
    tls_signals.counted = count;
    tls_signals.asleep = tls_signals.asleep + 1;
  }
  ~CountedSleep() {
    const bool own = tls_signals.forks == forks_;
    tls_signals.word = nullptr;
    tls_signals.lane = nullptr;
    tls_signals.counted = own || outer_ == nullptr ? outer_ : &parents_sleepers;
    tls_signals.frame = frame_;
    tls_signals.asleep = tls_signals.asleep - 1;
    if (own) count_->fetch_sub(1, std::memory_order_seq_cst);
  }
  CountedSleep(const CountedSleep&) = delete;
  CountedSleep& operator=(const CountedSleep&) = delete;

 private:
  std::atomic<int>* const count_;
  std::atomic<int>* const outer_;
  const void* const frame_;
  const std::uint32_t forks_;
};

class Critical {
 public:
  Critical() {
    tls_signals.depth = tls_signals.depth + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(tls_signals.counted != nullptr, 0)) UndoSleep(this);
  }
  ~Critical() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    tls_signals.depth = tls_signals.depth - 1;
    if (__builtin_expect(tls_signals.pending != 0, 0) &&
        tls_signals.depth == 0) {
      DeliverDeferred();
    }
  }
  Critical(const Critical&) = delete;
  Critical& operator=(const Critical&) = delete;
};

// The form for the rooms below (base/critical.h), whose critical sections may
// lie inside a sleep of the caller's.
void EnterCritical();
void LeaveCritical();

// The inside of a sleep, where handlers run.  Cancellation undoes it, too.
class OutsideCritical {
 public:
  OutsideCritical() {
    tls_signals.depth = tls_signals.depth - 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (tls_signals.pending != 0 && tls_signals.depth == 0) DeliverDeferred();
  }
  ~OutsideCritical() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    tls_signals.depth = tls_signals.depth + 1;
  }
  OutsideCritical(const OutsideCritical&) = delete;
  OutsideCritical& operator=(const OutsideCritical&) = delete;
};

// Returns whether a handler called the caller.  The handler may have
// interrupted malloc.
bool InHandler();

inline bool SignalsPending() { return tls_signals.pending != 0; }

// Called at the start, by the preload alone.
void InitSignals();

// If the thread is in a critical section, puts the signal off to the section's
// end, and returns true.  For a handler that this room has not wrapped.
bool PutOff(int number, const siginfo_t* info, void* context);

// From here on a fault of a guarded instruction (base/guard.h) does not end the
// process.  Takes SIGSEGV and SIGBUS if they have the default action.  The
// program still sees the default action.
void GuardFaults();
extern constinit std::atomic<bool> faults_guarded;
// GuardFaults before a call looks at what the program points to.  The preload
// alone calls it.
[[gnu::cold]] void GuardFaultsEarly();
inline void BeforeLooking() {
  if (!faults_guarded.load(std::memory_order_relaxed)) [[unlikely]]
    GuardFaultsEarly();
}

// A filter of system calls is coming.  Gives the default action of SIGPIPE back
// to the kernel for good (base/no_sigpipe.h).
void EndSigpipeHandler();

int HookedSigaction(int number, const struct sigaction* action,
                    struct sigaction* old);
// `flags`: the flags of sigaction that the old call stands for.
sighandler_t HookedSignal(int number, sighandler_t handler, int flags);
int HookedSiginterrupt(int number, bool interrupt);

// Around fork.  Lock begins a critical section, and Unlock ends it.
void SignalsForkLock();
void SignalsForkUnlock(bool child);
// In the child, whether the latch was held or not.
void SignalsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_THREAD_SIGNALS_H_
