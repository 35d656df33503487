#ifndef RCSOCK_LIB_BASE_DCHECK_H_
#define RCSOCK_LIB_BASE_DCHECK_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

// RC_DCHECK(condition) ends the process where an invariant does not hold
// (docs/invariants.md). It names the condition by a plain system call: no
// latch, no memory.
//
// RC_DCHECK is on unless NDEBUG is defined: in a plain build, in a build for a
// sanitizer, and with --config=checked. What is installed (-c opt) compiles the
// condition and never computes it.
#if !defined(NDEBUG) || defined(RCSOCK_DCHECK)
#define RC_DCHECK_IS_ON 1
#else
#define RC_DCHECK_IS_ON 0
#endif

namespace rcsock::base {

[[noreturn, gnu::cold, gnu::noinline]] inline void DcheckFailed(
    const char* where, const char* condition) {
  char line[256];
  std::size_t length = 0;
  for (const char* part : {"rcsock: ", where, ": not true: ", condition}) {
    const std::size_t room = sizeof line - 1 - length;
    const std::size_t n = std::strlen(part) < room ? std::strlen(part) : room;
    std::memcpy(line + length, part, n);
    length += n;
  }
  line[length++] = '\n';
  ::syscall(SYS_write, 2, line, length);
  __builtin_trap();
}

}  // namespace rcsock::base

#define RC_DCHECK_TEXT(x) #x
#define RC_DCHECK_LINE(x) RC_DCHECK_TEXT(x)
#if RC_DCHECK_IS_ON
#define RC_DCHECK(condition)                                              \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::rcsock::base::DcheckFailed(__FILE__ ":" RC_DCHECK_LINE(__LINE__), \
                                   #condition);                           \
  } while (false)
#else
#define RC_DCHECK(condition) static_cast<void>(sizeof((condition) ? 1 : 0))
#endif

#endif  // RCSOCK_LIB_BASE_DCHECK_H_
