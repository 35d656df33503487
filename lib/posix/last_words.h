#ifndef RCSOCK_LIB_POSIX_LAST_WORDS_H_
#define RCSOCK_LIB_POSIX_LAST_WORDS_H_

#include <signal.h>

namespace rcsock::posix {

// A process that a signal ends writes its statistics first, where any are asked
// for: SIGHUP, SIGINT and SIGTERM, by which people and service managers end
// programs, as long as the program leaves them to their default action.  The
// kernel has a handler then, which the program does not see: sigaction() shows
// it what it has set itself.
//
// What is different for all that: the handler runs in a thread of the program,
// on its stack, so a process whose threads all wait where only SIGKILL gets
// through (a dead file server) ends no sooner than that.  So not without
// RCSOCK_STATS, nor for the first process of a PID namespace, which the kernel
// spares default actions.

// At the beginning.  `defer` puts a signal off to the end of the critical
// section that its thread is in, if it is in one, and says so.
using DeferSignal = bool (*)(int number, const siginfo_t* info, void* context);
void InitLastWords(DeferSignal defer);
// Default actions are the kernel's again, for good: a filter of system calls is
// coming, or this is a child that has become the first of a PID namespace.
void EndLastWords();

// For HookedSigaction, with its latch held.  The program leaves `number` to its
// default action, and the kernel has been told so.
void HideDefault(int number);
// What the kernel said of `number`, as the program is to see it.
void ShowDefault(int number, struct sigaction* action);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LAST_WORDS_H_
