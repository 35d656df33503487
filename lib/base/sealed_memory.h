#ifndef RCSOCK_LIB_BASE_SEALED_MEMORY_H_
#define RCSOCK_LIB_BASE_SEALED_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/unique_fd.h"

namespace rcsock::base {

// Memory in a descriptor whose size is fixed, so no access to its mappings
// raises SIGBUS. Any thread may call these functions.

// kMoreSeals: other seals may follow.
enum class Seals : std::uint8_t { kMoreSeals, kNoMoreSeals };
// Returns a new memfd of `size` zero bytes. Not ok(): errno.
UniqueFd CreateSealed(const char* name, std::size_t size, Seals seals);
// Returns the size of `fd`, which another program of this user has made by
// CreateSealed with kNoMoreSeals. Returns 0 if `fd` is no such memory.
std::size_t SealedSize(int fd);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SEALED_MEMORY_H_
