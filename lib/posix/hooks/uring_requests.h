#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_REQUESTS_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_REQUESTS_H_

#include <linux/io_uring.h>

#include <cstdint>

namespace rcsock::posix {
class Sock;
}

// Requests on streams that rcsock carries out in place of the kernel, by the
// calls that a program would make.
namespace rcsock::posix::uring {

// One request.  It is plain data, since the program may reuse the submission's
// memory.
struct Request {
  std::uint8_t opcode = 0;
  int fd = -1;
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint32_t done = 0;   // bytes that MSG_WAITALL has moved
  std::uint32_t flags = 0;  // MSG_*, or POLL* of IORING_OP_POLL_ADD
};

// Returns whether rcsock can carry out the request as the kernel would.  Sets
// `*request`.  Does not look at the stream, which may be any.
bool Read(const io_uring_sqe& from, Request* request);

// Carries out the request without waiting.  Returns the result that its
// completion has, or -EAGAIN if it has to wait.  Sets the completion's flags.
int Attempt(Request* request, std::uint32_t* flags);

// Whether the request completes with EAGAIN instead of waiting (MSG_DONTWAIT).
bool NeverWaits(const Request& request);

// EPOLL* for which the request waits.
std::uint32_t Awaits(const Request& request);
// Whether it moves no bytes.
inline bool IsPoll(const Request& request) {
  return request.opcode == IORING_OP_POLL_ADD;
}

// The stream that `fd` names, if its requests are worth carrying out: it is on
// a lane, or may get a lane.  Null: they are the kernel's.
Sock* Carried(int fd);

// The kernel is about to connect this stream by a request.
void BeforeConnect(const io_uring_sqe& request);
// The kernel accepts connections by a request.  rcsock finds their descriptors
// when later requests name them.
void BeforeAccept();
// A request names `fd`, which rcsock does not follow.
void Discover(int fd);

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_REQUESTS_H_
