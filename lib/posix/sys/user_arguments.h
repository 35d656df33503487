#ifndef RCSOCK_LIB_POSIX_SYS_USER_ARGUMENTS_H_
#define RCSOCK_LIB_POSIX_SYS_USER_ARGUMENTS_H_

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/guard.h"

// Arguments of a program that the kernel would refuse, or take for something
// else.
namespace rcsock::posix {

// Whether no program can have mapped the address: null, what lies beside it, or
// the kernel's half.  The kernel answers EFAULT for any bad address.  For other
// bad addresses the program ends here, as in memcpy, unless base/guard.h does
// the access.
inline bool Null(const void* pointer) {
  return reinterpret_cast<std::intptr_t>(pointer) < 4096;
}
// Null() for an argument that may be left out.
inline bool Astray(const void* pointer) {
  return pointer != nullptr && Null(pointer);
}
// Whether a lane could not read or write there.
inline bool Null(const iovec* iov, int count) {
  for (int i = 0; i < count; ++i) {
    if (Null(iov[i].iov_base) && iov[i].iov_len > 0) [[unlikely]] {
      return true;
    }
  }
  return false;
}

// Reads a name as sendto does; it means nothing to TCP.  False: the kernel
// refuses it.
inline bool MayName(const sockaddr* name, socklen_t length) {
  return name == nullptr || length == 0 ||
         (length <= sizeof(sockaddr_storage) && !Null(name) &&
          base::Readable(name, length));
}
// Stores the length of a sender's name on TCP, which is 0, as the kernel does:
// when the bytes are taken.  Returns 0, or -1 with errno.
inline int TellNoName(socklen_t* length) {
  socklen_t room;
  int error = EFAULT;
  if (!Null(length) && base::TryLoad(length, &room)) {
    if (static_cast<int>(room) < 0) {
      error = EINVAL;
    } else if (base::TryStore(length, socklen_t{0})) {
      return 0;
    }
  }
  errno = error;
  return -1;
}

// SO_RCVTIMEO or SO_SNDTIMEO in nanoseconds; 0: no limit.  A time that would
// overflow a clock is no limit, too.  A negative time is no wait at all, as in
// the kernel.
inline std::uint64_t TimeoutNs(const timeval& time) {
  constexpr std::int64_t kEver = 1'000'000'000;
  if (time.tv_sec < 0) return 1;
  if (time.tv_sec > kEver) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_usec) * 1000;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_USER_ARGUMENTS_H_
