#ifndef RCSOCK_LIB_POSIX_SOCKET_EACH_SOCK_H_
#define RCSOCK_LIB_POSIX_SOCKET_EACH_SOCK_H_

#include <atomic>
#include <cstdint>

#include "lib/posix/fd/file.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

// Loops over all streams of the process.

// kNow: the streams that the process uses.  kHidden: also the streams that a
// child of a fork has not used yet (hidden.h).  The caller of kHidden has the
// latches of a fork, or is the child, and waits for no thread.
enum class Which : std::uint8_t { kNow, kHidden };
template <class Each>
void ForEachSock(Each&& each, Which which = Which::kNow) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* sock = nullptr;
    if (which == Which::kNow) {
      const File* const file = Entry(fd);
      if (file == nullptr || file->Hidden()) continue;
      sock = LookupSock(fd);
    } else if (File* file = NamedEvenHidden(fd);
               file != nullptr && file->IsSock()) {
      sock = static_cast<Sock*>(file);
    }
    // If fds is 0, another thread is closing the stream.
    if (sock != nullptr && sock->fd() == fd && sock->fds.load() > 0) each(sock);
  }
}

// Calls visit(number) for the stream's numbers until it returns true.  Returns
// whether a visit returned true.
template <class Visit>
bool AnyNumber(const Sock* sock, Visit&& visit) {
  int left = sock->fds.load();
  if (left == 1) return visit(sock->fd());
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int number = 0; number <= top && left > 0; ++number) {
    if (NamedEvenHidden(number) != sock) continue;
    if (visit(number)) return true;
    --left;
  }
  return false;
}

// Returns whether the number, or a number of the stream, stays open across
// exec.
bool KeptByExec(int fd);
bool KeptByExec(const Sock* sock);

// Asks all streams first, and waits for them afterwards, so that the round
// trips overlap.
template <class Ask, class Await>
void AskThenAwait(Ask&& ask, Await&& await) {
  ForEachSock(ask);
  const std::uint64_t deadline = LeaveDeadline();
  ForEachSock([&](Sock* sock) { await(sock, deadline); });
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_EACH_SOCK_H_
