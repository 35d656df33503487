#include "lib/base/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace rcsock::base {

int log_level = 0;

void Log(const char* format, ...) {
  const int saved = errno;
  char line[512];
  int n = std::snprintf(line, sizeof line, "rcsock[%d]: ",
                        static_cast<int>(::syscall(SYS_getpid)));
  va_list args;
  va_start(args, format);
  const int m = std::vsnprintf(line + n, sizeof line - n - 1, format, args);
  va_end(args);
  n += m < 0 ? 0 : m;
  if (n > static_cast<int>(sizeof line) - 2) n = sizeof line - 2;
  line[n++] = '\n';
  ::syscall(SYS_write, 2, line, n);
  errno = saved;
}

}  // namespace rcsock::base
