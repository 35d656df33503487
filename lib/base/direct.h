#ifndef RCSOCK_LIB_BASE_DIRECT_H_
#define RCSOCK_LIB_BASE_DIRECT_H_

// The blocking calls of streams on TCP, without libc where that changes nothing
// (lib/base/alone.h). rcsock::direct::recv(...) is real::recv(...), with as few
// instructions as possible. libc would make one system call of that number, so
// filters and tracers see no difference.

#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/base/alone.h"
#include "lib/base/real.h"

namespace rcsock::direct {

// The calls that rcsock makes without libc. ALONE: these block, and are direct
// only where base::Alone(). BRIEF: these do not block. A library behind rcsock
// that defines one of a kind gets all of that kind.
#define RCSOCK_DIRECT_CALLS(ALONE, BRIEF) \
  ALONE(read, SYS_read)                   \
  ALONE(write, SYS_write)                 \
  ALONE(recv, SYS_recvfrom)               \
  ALONE(send, SYS_sendto)                 \
  ALONE(readv, SYS_readv)                 \
  ALONE(writev, SYS_writev)               \
  ALONE(recvmsg, SYS_recvmsg)             \
  ALONE(sendmsg, SYS_sendmsg)             \
  ALONE(accept4, SYS_accept4)             \
  ALONE(epoll_wait, SYS_epoll_wait)       \
  ALONE(epoll_pwait2, SYS_epoll_pwait2)   \
  BRIEF(close, SYS_close)                 \
  BRIEF(socket, SYS_socket)               \
  BRIEF(epoll_ctl, SYS_epoll_ctl)

// A call that is not in the list would bypass other libraries.
constexpr bool Listed(long number) {
#define ONE(name, its) \
  if (number == (its)) return true;
  RCSOCK_DIRECT_CALLS(ONE, ONE)
#undef ONE
  return false;
}

// Returns true if the next definitions of all blocking calls here are libc's.
// Then rcsock bypasses no other library. Sets brief_of_libc.
bool AllOfLibc();

[[gnu::noinline, gnu::cold]] long Failed(long result);

inline long Word(long word) { return word; }
inline long Word(const void* address) {
  return reinterpret_cast<long>(address);
}

// The call itself. The registers of missing arguments are not loaded.
template <long number, std::size_t count>
[[gnu::always_inline]] inline long Raw(const long (&a)[6]) {
  static_assert(Listed(number));
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  long result = number;
  if constexpr (count <= 3) {
    asm volatile("syscall"
                 : "+a"(result)
                 : "D"(a[0]), "S"(a[1]), "d"(a[2])
                 : "rcx", "r11", "memory");
  } else if constexpr (count == 4) {
    asm volatile("syscall"
                 : "+a"(result)
                 : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10)
                 : "rcx", "r11", "memory");
  } else {
    asm volatile("syscall"
                 : "+a"(result)
                 : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
  }
  return __builtin_expect(result < 0, 0) ? Failed(result) : result;
}

// As Call, in line. The kernel leaves the processor's prediction of returns
// worthless, so each frame between the program and the system call costs a
// misprediction, some 17 ns. The unwinder finds no landing pad for the
// instruction: either no handler runs here that may leave the call, or the
// caller has nothing to unwind, in any part of it.
template <long number, class... A>
[[gnu::always_inline]] inline long InLine(A... arguments) {
  static_assert(sizeof...(A) <= 6);
  return Raw<number, sizeof...(A)>({Word(arguments)...});
}

// Not inlined, and not noexcept: a handler may leave by pthread_exit or an
// exception. A caller that has something to unwind needs a call here, since the
// unwinder looks for the landing pad of a call.
template <long number, class... A>
[[gnu::noipa, gnu::hot]] long Call(A... arguments) {
  static_assert(sizeof...(A) <= 6);
  return Raw<number, sizeof...(A)>({Word(arguments)...});
}

inline ssize_t read(int fd, void* to, size_t length) {
  return base::Alone() ? Call<SYS_read>(fd, to, length)
                       : real::read(fd, to, length);
}

inline ssize_t write(int fd, const void* from, size_t length) {
  return base::Alone() ? Call<SYS_write>(fd, from, length)
                       : real::write(fd, from, length);
}

inline ssize_t recv(int fd, void* to, size_t length, int flags) {
  return base::Alone() ? Call<SYS_recvfrom>(fd, to, length, flags, 0, 0)
                       : real::recv(fd, to, length, flags);
}

inline ssize_t send(int fd, const void* from, size_t length, int flags) {
  return base::Alone() ? Call<SYS_sendto>(fd, from, length, flags, 0, 0)
                       : real::send(fd, from, length, flags);
}

inline ssize_t readv(int fd, const iovec* iov, int count) {
  return base::Alone() ? Call<SYS_readv>(fd, iov, count)
                       : real::readv(fd, iov, count);
}

inline ssize_t writev(int fd, const iovec* iov, int count) {
  return base::Alone() ? Call<SYS_writev>(fd, iov, count)
                       : real::writev(fd, iov, count);
}

inline ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return base::Alone() ? Call<SYS_recvmsg>(fd, message, flags)
                       : real::recvmsg(fd, message, flags);
}

inline ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return base::Alone() ? Call<SYS_sendmsg>(fd, message, flags)
                       : real::sendmsg(fd, message, flags);
}

// Whether the next definitions of these calls, which do not block, are libc's.
extern constinit std::atomic<bool> brief_of_libc;
inline bool BriefOfLibc() {
  return __builtin_expect(brief_of_libc.load(std::memory_order_relaxed), 1);
}

// In a critical section. close is no cancellation point here.
[[gnu::noinline, gnu::cold]] int CloseByOther(int fd);
[[gnu::always_inline]] inline int CloseInCritical(int fd) {
  return BriefOfLibc() ? static_cast<int>(InLine<SYS_close>(fd))
                       : CloseByOther(fd);
}
[[gnu::always_inline]] inline int EpollCtlInCritical(int set, int op, int fd,
                                                     epoll_event* event) {
  return BriefOfLibc()
             ? static_cast<int>(InLine<SYS_epoll_ctl>(set, op, fd, event))
             : real::epoll_ctl(set, op, fd, event);
}

// For callers that have nothing to unwind.
[[gnu::always_inline]] inline int SocketInLine(int domain, int type,
                                               int protocol) {
  return BriefOfLibc()
             ? static_cast<int>(InLine<SYS_socket>(domain, type, protocol))
             : real::socket(domain, type, protocol);
}
[[gnu::always_inline]] inline int Accept4InLine(int fd, sockaddr* address,
                                                socklen_t* length, int flags) {
  return base::Alone()
             ? static_cast<int>(InLine<SYS_accept4>(fd, address, length, flags))
             : real::accept4(fd, address, length, flags);
}
// The caller has asked base::Alone().
[[gnu::always_inline]] inline int EpollWaitInLine(int set, epoll_event* events,
                                                  int capacity, int timeout) {
  return static_cast<int>(
      InLine<SYS_epoll_wait>(set, events, capacity, timeout));
}

inline int epoll_wait(int set, epoll_event* events, int capacity, int timeout) {
  return base::Alone() ? static_cast<int>(Call<SYS_epoll_wait>(
                             set, events, capacity, timeout))
                       : real::epoll_wait(set, events, capacity, timeout);
}

inline int epoll_pwait2(int set, epoll_event* events, int capacity,
                        const timespec* timeout, const sigset_t* mask) {
  // The kernel's sets of signals have 8 bytes.
  return base::Alone()
             ? static_cast<int>(Call<SYS_epoll_pwait2>(set, events, capacity,
                                                       timeout, mask, 8))
             : real::epoll_pwait2(set, events, capacity, timeout, mask);
}

}  // namespace rcsock::direct

#endif  // RCSOCK_LIB_BASE_DIRECT_H_
