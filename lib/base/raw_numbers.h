#ifndef RCSOCK_LIB_BASE_RAW_NUMBERS_H_
#define RCSOCK_LIB_BASE_RAW_NUMBERS_H_

#include <string_view>

#include "lib/base/code_scan.h"

namespace rcsock::base {

// Whether a program that makes this call by machine code of its own may use a
// connection, a descriptor or an epoll set past the hooks.
bool MayUseStreams(const SystemCall& call);

// For people: "epoll_wait", or "any".
const char* NameOfCall(const SystemCall& call);

// A library whose own system calls are known, by the last part of its path:
// there are none (libstdc++), they use no stream (the sanitizers' own output),
// are followed otherwise (liburing), or are made by the preload (rcsock's other
// libraries).
bool IsKnownLibrary(std::string_view path);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_RAW_NUMBERS_H_
