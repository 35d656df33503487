#ifndef RCSOCK_LIB_BASE_PATH_H_
#define RCSOCK_LIB_BASE_PATH_H_

#include <cstring>

namespace rcsock::base {

// The name of a file without its folder.
inline const char* LastPart(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_PATH_H_
