#ifndef RCSOCK_LIB_BASE_CRITICAL_H_
#define RCSOCK_LIB_BASE_CRITICAL_H_

namespace rcsock::base {

// A stretch in which this thread runs no signal handler of the application:
// one that interrupted the holder of a latch could come back for it, or jump
// away with it.  What puts the handlers off lies above; until it says how,
// there is nothing to put off.
struct CriticalHooks {
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;  // may run what has been put off
};
inline constinit CriticalHooks critical_hooks;  // set once, before any thread

class Critical {
 public:
  Critical() {
    if (critical_hooks.enter != nullptr) critical_hooks.enter();
  }
  ~Critical() {
    if (critical_hooks.leave != nullptr) critical_hooks.leave();
  }
  Critical(const Critical&) = delete;
  Critical& operator=(const Critical&) = delete;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CRITICAL_H_
