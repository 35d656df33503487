#ifndef RCSOCK_LIB_BASE_PATH_H_
#define RCSOCK_LIB_BASE_PATH_H_

#include <sys/utsname.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace rcsock::base {

// The longest path that a variable of the environment may name, and the room
// for its expansion.
constexpr std::size_t kLongestPath = 255;
constexpr std::size_t kExpandedPath = 512;

// Writes `pattern` with the pid in place of each %p and the name of this host,
// or container, in place of each %h.  Cut where it gets too long.  The first
// process of each container has the pid 1.
inline void ExpandPid(const char* pattern, long pid,
                      char (&path)[kExpandedPath]) {
  std::size_t length = 0;
  for (const char* at = pattern; *at != '\0' && length < sizeof path - 72;
       ++at) {
    if (at[0] == '%' && at[1] == 'p') {
      length += static_cast<std::size_t>(
          std::snprintf(path + length, sizeof path - length, "%ld", pid));
      ++at;
    } else if (at[0] == '%' && at[1] == 'h') {
      utsname host;
      ::uname(&host);
      for (const char* c = host.nodename; *c != '\0' && c < host.nodename + 64;
           ++c) {
        path[length++] = *c == '/' ? '_' : *c;
      }
      ++at;
    } else {
      path[length++] = *at;
    }
  }
  path[length] = '\0';
}

// Returns the name of a file without its folder.
inline const char* LastPart(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_PATH_H_
