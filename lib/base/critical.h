#ifndef RCSOCK_LIB_BASE_CRITICAL_H_
#define RCSOCK_LIB_BASE_CRITICAL_H_

#include <atomic>

namespace rcsock::base {

// A stretch in which this thread runs no signal handler of the application:
// one that interrupted the holder of a latch could come back for it, or jump
// away with it.  What puts the handlers off lies above; until it says how,
// there is nothing to put off.
struct CriticalHooks {
  void (*enter)();
  void (*leave)();  // may run what has been put off
  // Whether the caller runs in a signal handler.
  bool (*in_handler)();
};
// Set once.  (Another thread may be inside by then: an earlier library's
// constructor has made it, say.)
inline constinit std::atomic<const CriticalHooks*> critical_hooks{nullptr};

inline bool InHandler() {
  const auto* hooks = critical_hooks.load(std::memory_order_acquire);
  return hooks != nullptr && hooks->in_handler();
}

class Critical {
 public:
  Critical() : hooks_(critical_hooks.load(std::memory_order_acquire)) {
    if (hooks_ != nullptr) hooks_->enter();
  }
  ~Critical() {
    if (hooks_ != nullptr) hooks_->leave();
  }
  Critical(const Critical&) = delete;
  Critical& operator=(const Critical&) = delete;

 private:
  // Those it has entered by, or none.
  const CriticalHooks* const hooks_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CRITICAL_H_
