#ifndef RCSOCK_LIB_BASE_RAW_NUMBERS_H_
#define RCSOCK_LIB_BASE_RAW_NUMBERS_H_

#include <string_view>

#include "lib/base/code_scan.h"

namespace rcsock::base {

// Returns true if a program whose own machine code makes this call may use a
// connection, a descriptor or an epoll set past the hooks.
bool MayUseStreams(const SystemCall& call);

// Returns a name for people: "epoll_wait", or "any".
const char* NameOfCall(const SystemCall& call);

// Returns true if the library's own system calls are known, by the last part of
// its path. Either it makes none (libstdc++), or uses no stream (a sanitizer's
// output). Or rcsock follows it otherwise (liburing), or the preload makes its
// calls (rcsock's libraries).
bool IsKnownLibrary(std::string_view path);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_RAW_NUMBERS_H_
