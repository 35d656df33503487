#ifndef RCSOCK_LIB_POSIX_HOOKS_DATA_H_
#define RCSOCK_LIB_POSIX_HOOKS_DATA_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "lib/base/guard.h"
#include "lib/posix/file.h"
#include "lib/posix/sock.h"
#include "lib/posix/sock_plain.h"
#include "lib/posix/user_arguments.h"

// What the hooks of hooks_recv.cc, hooks_send.cc and hooks_sendfile.cc share.
//
// read, recv, write and send take the short way of a stream on a lane, or that
// of one on TCP: few instructions and fewer cache lines, since after a sleep in
// the kernel each is a miss.  They are "hot": the compiler puts such functions
// together (.text.hot).  Each of the ways that a hook may go on is a function
// that it ends with (Real..., Kernel..., Plain..., Lane..., Long...), so that
// it saves no registers itself.
namespace rcsock::posix::hook {

// False where the kernel refuses the vector, and says why better than we could.
// (What lies around the lengths is on the pages of these, but for what is
// before the first.)
inline bool Total(const iovec* iov, long count, std::size_t* total) {
  if (count < 0 || count > IOV_MAX || (count > 0 && Null(iov))) return false;
  void* first;
  if (count > 0 &&
      !base::TryLoad(const_cast<void* const*>(&iov->iov_base), &first)) {
    return false;
  }
  std::size_t sum = 0;
  for (long i = 0; i < count; ++i) {
    std::size_t length;
    if (!base::TryLoad(&iov[i].iov_len, &length)) return false;
    if (length > static_cast<std::size_t>(SSIZE_MAX) - sum) return false;
    sum += length;
  }
  *total = sum;
  return true;
}

// The same of a message's.
inline bool Total(const msghdr* message, std::size_t* total) {
  const iovec* iov;
  std::size_t count;
  return base::TryLoad(const_cast<const iovec* const*>(&message->msg_iov),
                       &iov) &&
         base::TryLoad(&message->msg_iovlen, &count) &&
         Total(iov, static_cast<long>(count), total);
}

// What a call of several messages says where the next one is a bad pointer.
inline int Faulted(unsigned done) {
  if (done > 0) return static_cast<int>(done);
  errno = EFAULT;
  return -1;
}

// Before a later part of a call that does one after the other: waits until `fd`
// is ready for `events`.  False: the call ends with what it has done, as the
// kernel's does where it would sleep: a handler has run since it began
// (`signals` is what tls_signals.any was), whatever that handler's flags, or
// the socket's time is over.
[[gnu::cold]] bool GoesOn(int fd, short events, std::uint32_t signals);

// A length that read, write and sendfile refuse before they look at the socket.
inline bool Negative(size_t length) { return static_cast<ssize_t>(length) < 0; }

// What send and recv, which refuse no length, take at most (MAX_RW_COUNT).
constexpr std::size_t kMostMoved = 0x7ffff000;
inline size_t Capped(size_t length) {
  return length < kMostMoved ? length : kMostMoved;
}

// A vector of more than that, cut as the kernel cuts it: `call(iov, count)`.
template <class Call>
[[gnu::cold, gnu::noinline]] ssize_t WithCut(const iovec* iov, int count,
                                             Call&& call) {
  const auto size = static_cast<std::size_t>(count);
  const std::unique_ptr<iovec[]> cut(new (std::nothrow) iovec[size]);
  if (cut == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  int pieces = 0;
  for (std::size_t left = kMostMoved; left > 0 && pieces < count; ++pieces) {
    cut[pieces] = iov[pieces];
    if (cut[pieces].iov_len > left) cut[pieces].iov_len = left;
    left -= cut[pieces].iov_len;
  }
  return call(cut.get(), pieces);
}

// A flag that only the kernel's own callers may set: recvmsg and sendmsg
// refuse it before they look at anything.
constexpr int kCompat = INT_MIN;  // MSG_CMSG_COMPAT

// Of preadv2 and pwritev2: those that mean nothing to a socket, and RWF_NOWAIT.
// What the kernel makes of any other is its business.
constexpr int kVectorFlags =
    RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOWAIT;

inline bool Engine(const Sock* sock) { return sock->mode() == Mode::kEngine; }

// Of an entry with kLaneMark, which has no other.
inline Sock* LaneSock(std::uintptr_t entry) {
  return &static_cast<Sock&>(*reinterpret_cast<File*>(entry - kLaneMark));
}

// Whether it stands there still.
[[gnu::always_inline]] inline auto Stands(const std::atomic<std::uintptr_t>* at,
                                          std::uintptr_t entry) {
  return [=] { return at->load(std::memory_order_relaxed) == entry; };
}
// Whether the number is still the stream's that has been found there.
[[gnu::always_inline]] inline auto StillAt(int fd, const Sock* sock) {
  return [=] { return sock->IsAt(fd); };
}

}  // namespace rcsock::posix::hook

#endif  // RCSOCK_LIB_POSIX_HOOKS_DATA_H_
