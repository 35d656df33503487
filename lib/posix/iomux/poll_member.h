#ifndef RCSOCK_LIB_POSIX_IOMUX_POLL_MEMBER_H_
#define RCSOCK_LIB_POSIX_IOMUX_POLL_MEMBER_H_

#include <poll.h>

#include <cstdint>

#include "lib/posix/fd/file.h"

namespace rcsock::posix {

constexpr nfds_t kOnStack = 64;
// Marks a descriptor that the kernel is not asked about again soon.
constexpr short kAside = 0x4000;
constexpr std::int64_t kAsideNs = 100'000'000;
// So few streams take no time to look at.
constexpr nfds_t kFew = 4;

inline File* Followed(int fd) { return fd < 0 ? nullptr : Lookup(fd); }

// A member of the poll set that poll itself looks at.
struct Member {
  nfds_t at;
  File* file;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_POLL_MEMBER_H_
