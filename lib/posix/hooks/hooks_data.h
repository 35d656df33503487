#ifndef RCSOCK_LIB_POSIX_HOOKS_HOOKS_DATA_H_
#define RCSOCK_LIB_POSIX_HOOKS_HOOKS_DATA_H_

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
#include "lib/posix/fd/file.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/user_arguments.h"

// What the hooks of hooks_recv.cc, hooks_send.cc and hooks_sendfile.cc share.
//
// read, recv, write and send have a short way for a stream on a lane, and
// another for a stream on TCP.  A short way takes few instructions and few
// cache lines, since after a sleep in the kernel each is a miss.  These
// functions are "hot": the compiler puts them together (.text.hot).  Each
// further way is a function that the hook ends with (Real..., Kernel...,
// Plain..., Lane..., Long...), so that the hook saves no registers.
namespace rcsock::posix::hook {

// Sums up the lengths.  Returns false if the kernel refuses the vector, and
// reports why.  A length and what lies around it are on one page; only iov_base
// of the first element lies before that.
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

// Total of a message's vector.
inline bool Total(const msghdr* message, std::size_t* total) {
  const iovec* iov;
  std::size_t count;
  return base::TryLoad(const_cast<const iovec* const*>(&message->msg_iov),
                       &iov) &&
         base::TryLoad(&message->msg_iovlen, &count) &&
         Total(iov, static_cast<long>(count), total);
}

// What a call with several messages returns if the next message is a bad
// pointer.
inline int Faulted(unsigned done) {
  if (done > 0) return static_cast<int>(done);
  errno = EFAULT;
  return -1;
}

// Called before a later part of a call that works by parts: waits until `fd` is
// ready for `events`.  Returns false if the call ends with what it has done, as
// the kernel's call does where it would sleep.  Then a handler has run since
// the call began, whatever its flags, or the socket's time is over.  `signals`
// is what tls_signals.any was at the start.  `left_ns`: what is left of the
// call's time, from which the wait is taken; null: each part has the socket's
// time.
[[gnu::cold]] bool GoesOn(int fd, short events, std::uint32_t signals,
                          std::uint64_t* left_ns = nullptr);

// A length that read, write and sendfile refuse before they look at the socket.
inline bool Negative(size_t length) { return static_cast<ssize_t>(length) < 0; }

// The most that send and recv, which refuse no length, take (MAX_RW_COUNT).
constexpr std::size_t kMostMoved = 0x7ffff000;
inline size_t Capped(size_t length) {
  return length < kMostMoved ? length : kMostMoved;
}

// Cuts a longer vector as the kernel does, and runs `call(iov, count)`.
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

// A flag for the kernel's own callers.  recvmsg and sendmsg refuse it before
// they look at anything.
constexpr int kCompat = INT_MIN;  // MSG_CMSG_COMPAT

// The flags of preadv2 and pwritev2 that mean nothing to a socket, and
// RWF_NOWAIT.  Any other flag is left to the kernel.
constexpr int kVectorFlags =
    RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOWAIT;

inline bool Engine(const Sock* sock) { return sock->mode() == Mode::kEngine; }

// For an entry with kLaneMark and no other mark.
inline Sock* LaneSock(std::uintptr_t entry) {
  return &static_cast<Sock&>(*reinterpret_cast<File*>(entry - kLaneMark));
}

// Whether `entry` still stands in the table.
[[gnu::always_inline]] inline auto Stands(const std::atomic<std::uintptr_t>* at,
                                          std::uintptr_t entry) {
  return [=] { return at->load(std::memory_order_relaxed) == entry; };
}
// Whether the number still names the stream that the caller found there.
[[gnu::always_inline]] inline auto StillAt(int fd, const Sock* sock) {
  return [=] { return sock->IsAt(fd); };
}

}  // namespace rcsock::posix::hook

#endif  // RCSOCK_LIB_POSIX_HOOKS_HOOKS_DATA_H_
