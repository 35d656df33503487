#ifndef RCSOCK_LIB_BASE_IDENTITY_H_
#define RCSOCK_LIB_BASE_IDENTITY_H_

#include <sys/types.h>

namespace rcsock::base {

// No user. Nothing is trusted that has this uid.
constexpr uid_t kNoUid = static_cast<uid_t>(-1);

// Returns the user that this thread works for. If its real, effective and saved
// uid differ, the thread acts for another user, or may do so: then it returns
// kNoUid.
uid_t OwnUid();

// Returns a uid that the kernel has named, or kNoUid. In a user namespace the
// kernel names all users without a number there by one uid (overflowuid,
// 65534). So if some users have no number, that uid stands for no user.
uid_t Known(uid_t uid);

// Reads which users have a number here. Call it before OwnUid and Known, and
// again when the user namespace may have changed.
void ReadUidMap();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_IDENTITY_H_
