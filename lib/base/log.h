#ifndef RCSOCK_LIB_BASE_LOG_H_
#define RCSOCK_LIB_BASE_LOG_H_

#include <cstddef>

namespace rcsock::base {

// RCSOCK_LOG=1 reports promotions, demotions and failures, on stderr or in a
// file (RCSOCK_LOG_FILE); 2 adds each step of the protocol.  Off by default:
// the host program owns its stderr.
extern int log_level;

// Takes the level, and fd 2 as it is now for stderr.
void InitLog(int level);

// The file for all that is said, in place of stderr: null or "" for none.  %p
// in its name is the pid, and a process that has no such file begins one.  It
// is opened here, and not when there is something to say: a daemon may change
// its user, its directory or its root first.  The number is one of rcsock's,
// which the program can't close (lib/base/unique_fd.h), and exec does not keep
// it: the next program opens its own.
void OpenLogFile(const char* pattern);
// In the child of fork: with %p it has a file of its own, or goes on with the
// parent's where it may make none.
void LogForkChild();
// Nothing is said any more: the process is about to filter its system calls.
void EndLog();

// One write(2) to the file or to stderr, prefixed with the pid.  Safe in any
// thread.  Nothing is written if the number has become something that may be no
// log, and no signal comes of it (SIGPIPE; SIGXFSZ of a program that may not
// write files).
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));

// One write(2), without these signals.
long WriteQuietly(int fd, const char* line, std::size_t length);

#define RCSOCK_LOG(level, ...)                                       \
  do {                                                               \
    if (__builtin_expect(::rcsock::base::log_level >= (level), 0)) { \
      ::rcsock::base::Log(__VA_ARGS__);                              \
    }                                                                \
  } while (0)

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LOG_H_
