#ifndef RCSOCK_LIB_BASE_MEMORY_LIMIT_H_
#define RCSOCK_LIB_BASE_MEMORY_LIMIT_H_

#include <cstdint>

namespace rcsock::base {

// Returns how many bytes of memory this process may have: the least of the
// host's memory and of what its control group and the groups above allow. Reads
// files.
std::uint64_t MemoryLimit();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_MEMORY_LIMIT_H_
