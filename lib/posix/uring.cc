#include "lib/posix/uring.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "lib/posix/hooks.h"
#include "lib/posix/passing.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"
#include "lib/posix/table.h"
#include "lib/posix/user_arguments.h"

namespace rcsock::posix::uring {
namespace {

// The newest liburing whose submitting functions are all in preload/uring.cc.
constexpr int kNewestKnown = 2008;

// Flags under which a submission is what struct Ring says, as of
// IORING_SETUP_NO_SQARRAY, the newest in that liburing.
constexpr unsigned kKnownFlags = (1u << 17) - 1;
constexpr unsigned kSqe128 = 1u << 10;  // IORING_SETUP_SQE128

// IORING_OP_*, newer than the headers of Debian 12.
constexpr int kWaitid = 50;
constexpr int kFutexWait = 51;
constexpr int kFutexWake = 52;
constexpr int kFutexWaitv = 53;

constexpr unsigned kSpliceFdInFixed = 1u << 31;  // SPLICE_F_FD_IN_FIXED

void Leave(int fd) {
  File* file = Lookup(fd);
  if (file == nullptr) return;
  if (file->kind == FileKind::kSock) {
    auto* sock = static_cast<Sock*>(file);
    if (!sock->listening.load(std::memory_order_relaxed)) {
      sock->Pin(base::Reason::kPinnedIoUring);
    }
  } else {
    // A set of ours that the kernel is to change or to wait for: it knows
    // nothing of lanes.
    PinAll();
  }
}

void Look(const io_uring_sqe& request) {
  switch (request.opcode) {
    case IORING_OP_NOP:
    case IORING_OP_TIMEOUT:
    case IORING_OP_TIMEOUT_REMOVE:
    case IORING_OP_ASYNC_CANCEL:
    case IORING_OP_POLL_REMOVE:
    // What stands in the place of the descriptor is something else.
    case IORING_OP_PROVIDE_BUFFERS:
    case IORING_OP_REMOVE_BUFFERS:
    case IORING_OP_SETXATTR:
    case IORING_OP_GETXATTR:
    case IORING_OP_SOCKET:
    case kWaitid:
    case kFutexWait:
    case kFutexWake:
    case kFutexWaitv:
      return;
    case IORING_OP_CLOSE:
      if (request.file_index != 0) return;
      break;
    case IORING_OP_FILES_UPDATE:
      // An array of descriptors, which the kernel reads later.
      PinAll();
      return;
    case IORING_OP_SPLICE:
    case IORING_OP_TEE:
      if ((request.splice_flags & kSpliceFdInFixed) == 0) {
        Leave(request.splice_fd_in);
      }
      break;
    case IORING_OP_SENDMSG:
    case IORING_OP_SENDMSG_ZC: {
      const auto* message = reinterpret_cast<const msghdr*>(request.addr);
      BeforeLooking();
      if (!Null(message)) BeforePassing(message);
      break;
    }
    default:
      break;
  }
  if ((request.flags & IOSQE_FIXED_FILE) == 0) Leave(request.fd);
}

}  // namespace

void PinAll() {
  if (!InBorrowedMemory()) PinProcess(base::Reason::kPinnedIoUring);
}

void BeforeMaking(unsigned flags, int version) {
  if ((flags & ~kKnownFlags) != 0 || version > kNewestKnown) PinAll();
}

void BeforeSubmit(const Ring* ring) {
  if (Null(ring) || InBorrowedMemory() || ring->sqes == nullptr) return;
  const unsigned mask = *ring->kring_mask;
  const unsigned shift = (ring->flags & kSqe128) != 0 ? 1 : 0;
  for (unsigned at = ring->sqe_head; at != ring->sqe_tail; ++at) {
    Look(ring->sqes[static_cast<std::size_t>(at & mask) << shift]);
  }
}

void BeforeRegister(const int* fds, unsigned count) {
  if (Null(fds) || InBorrowedMemory()) return;
  // The kernel answers EFAULT to an array that is not there: so it is read by
  // it, too.
  int some[64];
  for (unsigned from = 0; from < count;) {
    const unsigned n = std::min<unsigned>(count - from, std::size(some));
    const iovec here{some, n * sizeof some[0]};
    const iovec there{const_cast<int*>(fds + from), here.iov_len};
    const ssize_t got = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    if (got < 0) {
      if (errno != EFAULT) PinAll();  // a filter forbids to look
      return;
    }
    // Up to a fault the kernel, too, takes what there is.
    const auto whole = static_cast<unsigned>(got) / sizeof some[0];
    for (unsigned i = 0; i < whole; ++i) Leave(some[i]);
    if (whole < n) return;
    from += n;
  }
}

void BeforeRegister(unsigned operation) {
  // (The topmost bit says how the ring is named.)
  switch (operation & 0x7fffffff) {
    case IORING_REGISTER_FILES:
    case IORING_REGISTER_FILES_UPDATE:
    case IORING_REGISTER_FILES2:
    case IORING_REGISTER_FILES_UPDATE2:
      PinAll();
      break;
    default:
      break;
  }
}

}  // namespace rcsock::posix::uring
