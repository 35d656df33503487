#ifndef RCSOCK_LIB_BASE_MEMORY_LIMIT_H_
#define RCSOCK_LIB_BASE_MEMORY_LIMIT_H_

#include <cstdint>

namespace rcsock::base {

// What this process may have of memory: the host's, or what its control group
// or one of those above it may have.  In bytes; reads some files.
std::uint64_t MemoryLimit();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_MEMORY_LIMIT_H_
