#ifndef RCSOCK_LIB_BASE_LOG_H_
#define RCSOCK_LIB_BASE_LOG_H_

namespace rcsock::base {

// RCSOCK_LOG=1 reports promotions, demotions and failures on stderr; 2 adds each
// step of the protocol.  Off by default: the host program owns its stderr.
extern int log_level;

// Takes the level, and fd 2 as it is now for stderr.
void InitLog(int level);

// One write(2) to stderr, prefixed with the pid.  Safe in any thread.  Nothing is
// written if fd 2 has become something that may be no log, and no signal comes of
// it (SIGPIPE; SIGXFSZ of a program that may not write files).
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));

#define RCSOCK_LOG(level, ...)                          \
  do {                                                  \
    if (__builtin_expect(                               \
            ::rcsock::base::log_level >= (level), 0)) { \
      ::rcsock::base::Log(__VA_ARGS__);                 \
    }                                                   \
  } while (0)

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LOG_H_
