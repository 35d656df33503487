#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_LAST_WORDS_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_LAST_WORDS_H_

#include <signal.h>

namespace rcsock::posix {

// If statistics are asked for, a process that a signal ends writes them first.
// The signals are SIGHUP, SIGINT and SIGTERM, by which people and service
// managers end programs.  This happens only where the program leaves the signal
// to its default action.  The kernel then has a handler that the program does
// not see: sigaction() shows the program what it has set.
//
// One thing is different from a default action.  The handler runs in a thread
// of the program, on its stack.  If all threads wait where only SIGKILL gets
// through, such as on a dead file server, the process does not end before the
// wait.  So these handlers are off without RCSOCK_STATS.  They are also off in
// the first process of a PID namespace, which the kernel spares default
// actions.

// Called at the start.  If the thread is in a critical section, `defer` puts a
// signal off to the section's end, and returns true.
using DeferSignal = bool (*)(int number, const siginfo_t* info, void* context);
void InitLastWords(DeferSignal defer);
// Gives default actions back to the kernel for good.  Called when a filter of
// system calls is coming, or when this is a child that has become the first
// process of a PID namespace.
void EndLastWords();

// For HookedSigaction, with its latch held.  The program leaves `number` to its
// default action, and the kernel knows that.
void HideDefault(int number);
// Changes what the kernel says of `number` into what the program is to see.
void ShowDefault(int number, struct sigaction* action);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_LAST_WORDS_H_
