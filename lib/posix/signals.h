#ifndef RCSOCK_LIB_POSIX_SIGNALS_H_
#define RCSOCK_LIB_POSIX_SIGNALS_H_

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace rcsock::lane {
class Lane;
}

namespace rcsock::posix {

// What a thread that waits in an epoll set has told the others of itself.
struct CountedWait {
  void* set = nullptr;    // an EpollSet, on which it must hand on, ...
  bool stranger = false;  // ... is one of its strangers, ...
  bool sleeper = false;   // ... or its sleepers
  bool again = false;     // a stranger who has been woken in this wait before
};

// What a signal handler must know of the thread it interrupts.
//
// The kernel ends a sleeping call with EINTR; a spin would not notice.  And a
// handler that runs while this thread holds a latch could call back into the
// same stream, or longjmp away with the latch held.  So handlers are wrapped at
// sigaction: inside a critical section the signal is put off until its end;
// otherwise it is counted, and a sleep that is about to begin is called off.
struct ThreadSignals {
  volatile std::uint32_t depth = 0;       // critical sections entered
  volatile std::uint32_t pending = 0;     // signals put off
  volatile std::uint32_t interrupts = 0;  // handlers run without SA_RESTART
  volatile std::uint32_t any = 0;         // handlers run
  // The futex word this thread is about to sleep on: the handler bumps it, so
  // that the sleep does not begin.
  std::atomic<std::uint32_t>* volatile word = nullptr;
  // The same for a sleep on a lane's own word.
  lane::Lane* volatile lane = nullptr;
  // The count of sleepers that this thread's sleep has raised, and an address
  // in the sleeping frame.  A handler that jumps out of the sleep leaves them
  // here.
  std::atomic<int>* volatile counted = nullptr;
  const void* volatile frame = nullptr;
  // The like of an epoll set: taken back before a handler runs, which may jump
  // away, and told anew when it returns.  So what is here at the beginning of a
  // wait was left by somebody who jumped otherwise.
  CountedWait wait;
  // The RecvInPlace of a call whose memory the peer may write to.  Ended before
  // a handler runs, as that may jump out of the call.
  void* volatile in_place = nullptr;
  // The frame that has called the innermost handler.
  const void* volatile handler = nullptr;
  // Sleeps that have begun and not ended: more than one where a handler sleeps.
  // (Too many, for a while, after a handler that has jumped out of them.)
  volatile std::uint32_t asleep = 0;
  // Forks that this thread is the child of.  A handler may have made the last
  // one within a sleep, whose count is the parent's then.
  volatile std::uint32_t forks = 0;
  // (More of them would be more of the static TLS that libc keeps for libraries
  // that are loaded late: 1,664 bytes.)
  static constexpr std::uint32_t kMostDeferred = 6;
  struct Deferred {
    int number;
    siginfo_t info;
  } deferred[kMostDeferred] = {};
  // The list is all but full: every other signal is blocked until it is
  // delivered, and the kernel keeps them.
  volatile bool blocking = false;
  // What `any` was as the call began that sends one part after the other, if it
  // sends a later one of them (Sock::kLater).
  volatile std::uint32_t begun = 0;
  // What was blocked before: of all that were put off, what each found.
  volatile std::uint64_t mask = ~std::uint64_t{0};
};

extern thread_local constinit ThreadSignals tls_signals
    __attribute__((tls_model("initial-exec")));

// Takes it back (tls_signals.wait is none then), and tells it anew
// (epoll_wait.cc).
CountedWait TakeBackWait();
void RecountWait(const CountedWait& wait);

// A call that sends by parts: `signals` is what `any` was as it began.  (A
// handler that makes such a call itself gives the place back; one that jumps
// out of it leaves there what no call looks at that has not set it.)
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

// Queues what was put off to this thread again; the handlers run before it
// returns.
void DeliverDeferred();

// In place of a count of sleepers that is the parent's; nobody's.
inline constinit std::atomic<int> parents_sleepers{0};

// Undoes what a sleep has left that a handler jumped out of.  `here` is an
// address in the caller's frame: a handler that runs during the sleep is
// further down the stack and must not undo it.
[[gnu::access(none, 1)]] void UndoSleep(const void* here);

// One sleep's count: raised already, taken back at the end; by cancellation
// too.
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

// The same for the rooms below (base/critical.h), whose critical sections may
// lie inside a sleep of the caller's.
void EnterCritical();
void LeaveCritical();

// The inside of a sleep: handlers run.  Undone by cancellation too.
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

// Whether the caller was called by a handler, which may have interrupted
// malloc.
bool InHandler();

inline bool SignalsPending() { return tls_signals.pending != 0; }

// At the beginning, by the preload alone.
void InitSignals();

// From here on a fault of an instruction that may fault (base/guard.h) ends
// nobody.  Takes SIGSEGV and SIGBUS where they have the default action, which
// is what the program goes on to see of them.
void GuardFaults();
extern constinit std::atomic<bool> faults_guarded;
// The same, before a call looks at what the program points to: by the preload
// alone.
[[gnu::cold]] void GuardFaultsEarly();
inline void BeforeLooking() {
  if (!faults_guarded.load(std::memory_order_relaxed)) [[unlikely]]
    GuardFaultsEarly();
}

// A filter of system calls is coming: the default action of SIGPIPE is the
// kernel's again, for good (base/no_sigpipe.h).
void EndSigpipeHandler();

int HookedSigaction(int number, const struct sigaction* action,
                    struct sigaction* old);
// `flags`: what of sigaction the old calls mean by it.
sighandler_t HookedSignal(int number, sighandler_t handler, int flags);
int HookedSiginterrupt(int number, bool interrupt);

// Around fork: Lock is a critical section, which Unlock ends.
void SignalsForkLock();
void SignalsForkUnlock(bool child);
// In the child, whether it was locked or not.
void SignalsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SIGNALS_H_
