#ifndef RCSOCK_LIB_BASE_CRITICAL_H_
#define RCSOCK_LIB_BASE_CRITICAL_H_

#include <atomic>

namespace rcsock::base {

// A scope in which this thread runs no signal handler of the application. A
// handler that interrupted the holder of a latch could call a function that
// waits for that latch, or jump away with the latch held. A room above sets the
// hooks that put handlers off. Until then a Critical does nothing.
struct CriticalHooks {
  void (*enter)();
  void (*leave)();  // may run what has been put off
  // Returns true if the caller runs in a signal handler.
  bool (*in_handler)();
};
// Set once. Another thread may be in a Critical already: an earlier library's
// constructor may have started that thread.
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
  // The hooks that the constructor called, or null.
  const CriticalHooks* const hooks_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CRITICAL_H_
