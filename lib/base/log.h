#ifndef RCSOCK_LIB_BASE_LOG_H_
#define RCSOCK_LIB_BASE_LOG_H_

#include <cstddef>

namespace rcsock::base {

// RCSOCK_LOG=1 reports promotions, demotions and failures, on stderr or in a
// file (RCSOCK_LOG_FILE). RCSOCK_LOG=2 adds each step of the protocol. Off by
// default: the host program owns its stderr.
extern int log_level;

// Sets the level, and takes the present fd 2 for stderr.
void InitLog(int level);

// Opens the file for all lines, in place of stderr; null or "" for none. %p in
// the name is the pid. A process without a file of its own begins one. The file
// is opened here, and not with the first line: a daemon may change its user,
// its directory or its root first. The number is one of rcsock's, which the
// program can't close (lib/base/unique_fd.h). exec does not keep it: the next
// program opens its own.
void OpenLogFile(const char* pattern);
// In the child of fork: with %p the child opens a file of its own. If it
// cannot, it goes on with the parent's.
void LogForkChild();
// Ends the log: the process is about to filter its system calls.
void EndLog();

// Writes a line by one write(2) to the file or to stderr, prefixed with the
// pid. Safe in any thread. If the number has become something that may be no
// log, nothing is written. The write raises no SIGPIPE, and no SIGXFSZ in a
// program that may not write files.
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Makes one write(2), which raises no SIGPIPE and no SIGXFSZ.
long WriteQuietly(int fd, const char* line, std::size_t length);

#define RCSOCK_LOG(level, ...)                                       \
  do {                                                               \
    if (__builtin_expect(::rcsock::base::log_level >= (level), 0)) { \
      ::rcsock::base::Log(__VA_ARGS__);                              \
    }                                                                \
  } while (0)

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LOG_H_
