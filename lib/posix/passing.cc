#include "lib/posix/passing.h"

#include <cstddef>
#include <cstring>

#include "lib/base/guard.h"
#include "lib/posix/sock_plain.h"
#include "lib/posix/table.h"
#include "lib/posix/user_arguments.h"

namespace rcsock::posix {

void BeforePassing(const msghdr* message) {
  // (CMSG_NXTHDR wants a message that may be changed, and does not.)
  auto* const all = const_cast<msghdr*>(message);
  // (The kernel says so.)
  if (Null(all->msg_control) || all->msg_controllen == 0 ||
      !base::Readable(all->msg_control, all->msg_controllen)) {
    return;
  }
  const auto* const end =
      static_cast<const char*>(all->msg_control) + all->msg_controllen;
  for (cmsghdr* c = CMSG_FIRSTHDR(all); c != nullptr; c = CMSG_NXTHDR(all, c)) {
    const auto* at = reinterpret_cast<const char*>(CMSG_DATA(c));
    // The kernel refuses what does not fit.
    if (c->cmsg_len < CMSG_LEN(0) ||
        c->cmsg_len - CMSG_LEN(0) > static_cast<std::size_t>(end - at)) {
      return;
    }
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t left = c->cmsg_len - CMSG_LEN(0); left >= sizeof(int);
         left -= sizeof(int), at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, at, sizeof fd);
      if (const SockAt sock(fd); sock) {
        // (Nor is a close here the end of it from now on.)
        sock->GivenAway();
        sock->Pin(base::Reason::kPinnedScmRights);
      } else if (EpollSet* set = LookupSet(fd)) {
        set->SetNested();  // its streams stay where the other process sees them
      }
    }
  }
}

}  // namespace rcsock::posix
