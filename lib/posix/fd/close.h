#ifndef RCSOCK_LIB_POSIX_FD_CLOSE_H_
#define RCSOCK_LIB_POSIX_FD_CLOSE_H_

#include <atomic>

#include "lib/posix/fd/table.h"

// How the code outside this room closes numbers.  A number may be that of an
// io_uring ring, which the table does not know.
namespace rcsock::posix {

// How many rings are mapped, plus how many hold requests.
extern constinit std::atomic<int> known_rings;
// What forgets the rings with numbers in [first, last].
using ForgetRings = void (*)(unsigned first, unsigned last);
// Counts one more ring.  The room of the rings passes what forgets them, so
// that this room does not need it.
void CountRing(ForgetRings forget);
// The slow part of BeforeClose.
[[gnu::cold]] void ForgetKnownRings(unsigned first, unsigned last);

// Called before the numbers from `first` to `last` are closed, or name
// something else.  Forgets the rings among them: rcsock's mapping of a ring
// would keep the ring alive.
inline void BeforeClose(unsigned first, unsigned last) {
  if (known_rings.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    ForgetKnownRings(first, last);
  }
}
inline void BeforeClose(int fd) {
  BeforeClose(static_cast<unsigned>(fd), static_cast<unsigned>(fd));
}

inline int CloseAny(int fd) {
  BeforeClose(fd);
  return CloseFd(fd);
}

inline int ReplaceAny(int fd, int from, int flags) {
  BeforeClose(fd);
  return ReplaceFd(fd, from, flags);
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FD_CLOSE_H_
