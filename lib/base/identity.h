#ifndef RCSOCK_LIB_BASE_IDENTITY_H_
#define RCSOCK_LIB_BASE_IDENTITY_H_

#include <sys/types.h>

namespace rcsock::base {

// No user: of whom nothing is trusted.
constexpr uid_t kNoUid = static_cast<uid_t>(-1);

// The user that this thread works for; kNoUid where its real, effective and
// saved uid differ: it is another user's for a moment, or may become one.
uid_t OwnUid();

// A uid that the kernel has named, or kNoUid.  In a user namespace the kernel
// names all users that have no number there by one and the same (overflowuid,
// 65534).  So where some have none, nobody is that user.
uid_t Known(uid_t uid);

// Reads which users have a number here: before the two above, and again when
// the user namespace may have changed.
void ReadUidMap();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_IDENTITY_H_
