#include "lib/posix/lifecycle/passing.h"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/internal.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/sharing/unix_peer.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/sys/user_arguments.h"

namespace rcsock::posix {
namespace {

// Calls each(number) for the descriptors in `message`.
template <class Each>
void EachPassed(const msghdr* message, Each&& each) {
  // CMSG_NXTHDR asks for a message that it may change, and does not change it.
  auto* const all = const_cast<msghdr*>(message);
  // The kernel reports that.
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
      each(fd);
    }
  }
}

}  // namespace

void Passing::Before(const msghdr* message) {
  const int saved = errno;
  EachPassed(message, [this](int fd) {
    const std::uint32_t index = count_++;
    if (const SockAt sock(fd); sock) {
      sock->status_known.store(0);
      if (!asked_ && fd_ >= 0) {
        to_ = UnixPeer(fd_);
        tag_ = Notes::Tag();
      }
      asked_ = true;
      if (to_ != 0 &&
          sock->noted().Travel(fd, to_, Notes::TagAfter(tag_, index)))
        return;
      // From now on a close in this process is not the connection's end.
      sock->holders().GiveAway();
      sock->way_back().Pin(base::Reason::kPinnedScmRights);
      // What this process has done to the connection, or does not know, holds
      // for its next holder, too.
      if (ProcessPinned() != base::Reason::kSandboxed) Notes(fd).Spoil();
    } else if (EpollSet* set = LookupSet(fd)) {
      set->SetNested();  // its streams stay where the other process sees them
    }
  });
  errno = saved;
}

std::uint32_t Passing::Drop(const msghdr* message, bool failed,
                            std::uint32_t index) const {
  EachPassed(message, [&](int fd) {
    const std::uint32_t tag = Notes::TagAfter(tag_, index++);
    if (failed && LookupSock(fd) != nullptr) Notes(fd).DropFlight(to_, tag);
  });
  return index;
}

void Passing::Failed(const msghdr* message) {
  if (to_ == 0) return;
  const int saved = errno;
  Drop(message, true, 0);
  errno = saved;
}

void Passing::Failed(const mmsghdr* messages, unsigned sent, unsigned count) {
  if (to_ == 0) return;
  const int saved = errno;
  std::uint32_t index = 0;
  for (unsigned i = 0; i < count; ++i) {
    index = Drop(&messages[i].msg_hdr, i >= sent, index);
  }
  errno = saved;
}

void AfterReceiving(int fd, const msghdr* message, int flags) {
  if (OwnFace() != Face::kPreload || ProcessPinned() != base::Reason::kNone) {
    return;
  }
  const int saved = errno;
  // If other processes keep turns, the call waits once, and not for each
  // descriptor.
  std::uint64_t until = 0;
  bool borrowed = false;
  EachPassed(message, [&](int number) {
    if (until == 0) {
      borrowed = InBorrowedMemory();
      until = base::NowNs() + Notes::kPatienceNs;
    }
    // The kernel has just given out the number, so its last owner is closed.
    if (!borrowed) Evict(number);
    if (borrowed || !IsTcp(number)) return;
    const bool peek = (flags & MSG_PEEK) != 0;
    if (NotedShare::Arrived(number, SocketInode(fd), peek, until) != nullptr)
      return;
    if (Sock* sock = NotedShare::Unknown(number, false, until))
      Bind(number, sock);
  });
  errno = saved;
}

}  // namespace rcsock::posix
