// The calls that set a handler, and those that block signals.  Handlers are
// wrapped (lib/posix/thread/signals.h).  Blocked signals are noticed
// (lib/base/no_sigpipe.h).

#include <signal.h>

#include "lib/base/no_sigpipe.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::hook {

int sigaction(int number, const struct sigaction* action,
              struct sigaction* old) {
  return HookedSigaction(number, action, old);
}

int siginterrupt(int number, int interrupt) {
  return HookedSiginterrupt(number, interrupt != 0);
}

sighandler_t signal(int number, sighandler_t handler) {
  return HookedSignal(number, handler, SA_RESTART);
}

sighandler_t __sysv_signal(int number, sighandler_t handler) {
  return HookedSignal(number, handler,
                      static_cast<int>(SA_RESETHAND | SA_NODEFER));
}

sighandler_t sysv_signal(int number, sighandler_t handler) {
  return hook::__sysv_signal(number, handler);
}

sighandler_t bsd_signal(int number, sighandler_t handler) {
  return hook::signal(number, handler);
}

sighandler_t ssignal(int number, sighandler_t handler) {
  return hook::signal(number, handler);
}

int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  if (set != nullptr) base::ForgetMask();
  return real::pthread_sigmask(how, set, old);
}

int sigprocmask(int how, const sigset_t* set, sigset_t* old) {
  if (set != nullptr) base::ForgetMask();
  return real::sigprocmask(how, set, old);
}

sighandler_t sigset(int number, sighandler_t handler) {
  const bool hold = handler == SIG_HOLD;
  struct sigaction action {};
  if (HookedSigaction(number, nullptr, &action) != 0 ||
      (!hold && HookedSignal(number, handler, 0) == SIG_ERR)) {
    return SIG_ERR;
  }
  sigset_t one;
  sigset_t before;
  ::sigemptyset(&one);
  ::sigaddset(&one, number);
  hook::pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &one, &before);
  return ::sigismember(&before, number) == 1 ? SIG_HOLD : action.sa_handler;
}

}  // namespace rcsock::posix::hook
