#ifndef RCSOCK_LIB_POSIX_SIGNALS_H_
#define RCSOCK_LIB_POSIX_SIGNALS_H_

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace rcsock::lane {
class Lane;
}

namespace rcsock::posix {

// What a signal handler must know of the thread it interrupts.
//
// The kernel ends a sleeping call with EINTR; a spin would not notice.  And a
// handler that runs while this thread holds a latch could call back into the
// same stream, or longjmp away with the latch held.  So handlers are wrapped at
// sigaction: inside a critical section the signal is put off until its end;
// otherwise it is counted, and a sleep that is about to begin is called off.
struct ThreadSignals {
  volatile std::uint32_t depth = 0;        // critical sections entered
  volatile std::uint32_t pending = 0;      // signals put off
  volatile std::uint32_t interrupts = 0;   // handlers run without SA_RESTART
  volatile std::uint32_t any = 0;          // handlers run
  // The futex word this thread is about to sleep on: the handler bumps it, so
  // that the sleep does not begin.
  std::atomic<std::uint32_t>* volatile word = nullptr;
  // The same for a sleep on a lane's own word.
  lane::Lane* volatile lane = nullptr;
  struct Deferred {
    int number;
    siginfo_t info;
  } deferred[8] = {};
};

extern thread_local constinit ThreadSignals tls_signals
    __attribute__((tls_model("initial-exec")));

// Queues what was put off to this thread again; the handlers run before it
// returns.
void DeliverDeferred();

class Critical {
 public:
  Critical() {
    tls_signals.depth = tls_signals.depth + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
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

inline bool SignalsPending() { return tls_signals.pending != 0; }

int HookedSigaction(int number, const struct sigaction* action,
                    struct sigaction* old);
sighandler_t HookedSignal(int number, sighandler_t handler);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SIGNALS_H_
