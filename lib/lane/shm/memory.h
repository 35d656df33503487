#ifndef RCSOCK_LIB_LANE_SHM_MEMORY_H_
#define RCSOCK_LIB_LANE_SHM_MEMORY_H_

#include <cstddef>

#include "lib/base/unique_fd.h"

namespace rcsock::lane::shm {

// Returns a new memfd of `size` zero bytes, whose size is fixed. If it is not
// ok(), errno says why.
base::UniqueFd CreateMemory(const char* name, std::size_t size);
// Forbids every writable mapping but those that exist, and further seals.
bool SealReadOnly(int fd);
// True if `fd` is a memfd of exactly `size` bytes, sealed against resizing:
// then no access to its mappings can raise SIGBUS.
bool CheckMemory(int fd, std::size_t size);
// Maps the memory shared, left out of core dumps. Null: errno.
void* MapMemory(int fd, std::size_t size, bool writable);
void UnmapMemory(const void* at, std::size_t size);
// Puts empty memory of this process alone in the mapping's place.
void ForgetMemory(void* at, std::size_t size);

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_MEMORY_H_
