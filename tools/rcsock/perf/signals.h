#ifndef RCSOCK_TOOLS_RCSOCK_PERF_SIGNALS_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_SIGNALS_H_

#include <sys/signalfd.h>

#include <csignal>

#include "tools/rcsock/perf/net.h"

namespace rcsock::perf {

// Returns a descriptor that becomes readable when a signal asks this process to
// end.  The process then ends in order.  Call it before the first thread or
// child.
inline Fd CatchSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_SIGNALS_H_
