#include "lib/posix/hooks/uring.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/uring_batch.h"
#include "lib/posix/hooks/uring_requests.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/lifecycle/passing.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {
namespace {

// The newest liburing whose submitting functions are all in preload/uring.cc.
constexpr int kNewestKnown = 2008;

// The flags with which a submission works as struct Ring says.
// IORING_SETUP_NO_SQARRAY is the newest in that liburing.
constexpr unsigned kKnownFlags = (1u << 17) - 1;

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
      sock->way_back().Pin(base::Reason::kPinnedIoUring);
    }
  } else {
    // The descriptor is one of rcsock's epoll sets.  POLL_ADD can be answered.
    // For any other request the kernel cannot answer for the lanes.
    PinAll();
  }
}

// Whether the ring waits for a set of rcsock's, so that no stream leaves its
// lane.
bool SeenByRing(const io_uring_sqe& request) {
  if (request.opcode != IORING_OP_POLL_ADD ||
      (request.flags & IOSQE_FIXED_FILE) != 0) {
    return false;
  }
  EpollSet* const set = LookupSet(request.fd);
  if (set == nullptr || !set->SeenFromOutside(true)) return false;
  UpdateMirrors();
  return true;
}

void Look(const io_uring_sqe& request) {
  switch (request.opcode) {
    case IORING_OP_NOP:
    case IORING_OP_TIMEOUT:
    case IORING_OP_TIMEOUT_REMOVE:
    case IORING_OP_ASYNC_CANCEL:
    case IORING_OP_POLL_REMOVE:
    // In these requests, something else stands in place of the descriptor.
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
    case IORING_OP_ACCEPT:
      if (request.file_index == 0) BeforeAccept();
      break;
    case IORING_OP_CONNECT:
      if ((request.flags & IOSQE_FIXED_FILE) != 0) return;
      BeforeConnect(request);
      return;
    case IORING_OP_FILES_UPDATE:
      // The kernel reads this array of descriptors later.
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
      if (msghdr copy;
          !Null(message) && base::TrySmall(&copy, message, sizeof copy)) {
        Passing(-1).Before(&copy);
      }
      break;
    }
    default:
      break;
  }
  if (SeenByRing(request)) return;
  if ((request.flags & IOSQE_FIXED_FILE) == 0) Leave(request.fd);
}

// --- IORING_OP_EPOLL_CTL

constexpr unsigned kInjectResult = 1u << 0;  // IORING_NOP_INJECT_RESULT

// Whether IORING_OP_NOP completes with the result that it is given (Linux
// 6.10).
bool NopHasResult() {
  static constinit std::atomic<int> known{-1};
  int has = known.load(std::memory_order_relaxed);
  if (has < 0) {
    utsname names{};
    int major = 0;
    int minor = 0;
    has = ::uname(&names) == 0 &&
          std::sscanf(names.release, "%d.%d", &major, &minor) == 2 &&
          (major > 6 || (major == 6 && minor >= 10));
    known.store(has, std::memory_order_relaxed);
  }
  return has != 0;
}

// Three epoll sets: one of rcsock's own, its only member, and another set,
// which holds the first.  ADD of the member says EEXIST, and ADD of the holder
// ELOOP.  DEL and MOD of the holder say ENOENT, and ADD of the set to itself
// says EINVAL.
struct Refusing {
  int set = -1;
  int member = -1;
  int holder = -1;
};
constinit base::Latch refusing_latch;
constinit Refusing refusing RC_GUARDED_BY(refusing_latch);
// False: none can be made.
bool FindRefusing(Refusing* found) {
  Critical critical;
  const auto make_set = [] {
    return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
  };
  refusing_latch.lock();
  if (refusing.set < 0) {
    base::UniqueFd set(base::OpenHighForParent(make_set));
    base::UniqueFd holder(base::OpenHighForParent(make_set));
    base::UniqueFd member(base::OpenHighForParent(
        [] { return ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC); }));
    const auto holds = [](const base::UniqueFd& by,
                          const base::UniqueFd& what) {
      epoll_event nothing{};
      return ::syscall(SYS_epoll_ctl, by.get(), EPOLL_CTL_ADD, what.get(),
                       &nothing) == 0;
    };
    if (set.ok() && holder.ok() && member.ok() && holds(set, member) &&
        holds(holder, set)) {
      refusing = {set.release(), member.release(), holder.release()};
    }
  }
  *found = refusing;
  refusing_latch.unlock();
  return found->set >= 0;
}

// If the kernel is to see another request, the original is kept in the last
// word, which the kernel does not read.
constexpr std::uint64_t kRemade = 0x7c5e;
struct Was {
  std::uint64_t is : 16;
  std::uint64_t op : 8;
  std::uint64_t fd : 20;
  std::uint64_t target : 20;
};
static_assert(sizeof(Was) == sizeof(io_uring_sqe::__pad2[0]));
static_assert(kMaxFds <= 1 << 20);
constexpr std::size_t kLastWord = 56;
static_assert(sizeof(io_uring_sqe) == kLastWord + sizeof(Was));

// The functions below write into the ring.  A fault there is the program's
// doing.
template <class T>
void Write(io_uring_sqe* at, std::size_t offset, T value) {
  base::TryStore(reinterpret_cast<T*>(reinterpret_cast<char*>(at) + offset),
                 value);
}
std::uint64_t LastWord(const io_uring_sqe& request) {
  std::uint64_t word;
  std::memcpy(&word, reinterpret_cast<const char*>(&request) + kLastWord,
              sizeof word);
  return word;
}
// Returns whether the last word means nothing to the program.  liburing may
// leave rcsock's word there.
bool MayChange(const io_uring_sqe& request) {
  const std::uint64_t last = LastWord(request);
  Was was;
  std::memcpy(&was, &last, sizeof was);
  return MayBeRemade(request) || was.is == kRemade;  // liburing may leave it
}
void WriteOpcode(io_uring_sqe* at, std::uint8_t opcode, std::uint8_t flags) {
  // The first word: opcode, flags, and ioprio, which is 0.
  Write(at, 0, static_cast<std::uint32_t>(opcode | flags << 8));
}

// Makes the kernel complete `*at` with -`error`, or 0.  Returns false if the
// kernel cannot be made to.
bool Answer(const io_uring_sqe& request, int error, io_uring_sqe* at) {
  const auto number = static_cast<unsigned>(request.fd);
  const auto target = static_cast<unsigned>(request.off);
  Was was{kRemade, request.len, number, target};
  std::uint64_t last;
  std::memcpy(&last, &was, sizeof last);
  if (error == 0 || NopHasResult()) {
    if (error != 0) {
      Write(at, offsetof(io_uring_sqe, len),
            static_cast<std::uint32_t>(-error));
      Write(at, offsetof(io_uring_sqe, rw_flags), kInjectResult);
    }
    Write(at, kLastWord, last);
    WriteOpcode(at, IORING_OP_NOP, request.flags);
    return true;
  }
  switch (error) {
    // The kernel might give another result: rcsock carries out the whole batch
    // before the kernel sees its first request.
    case EEXIST:
    case EINVAL:
    case ENOENT:
    case ELOOP: {
      Refusing of;
      if (!FindRefusing(&of)) return false;
      const int other = error == EEXIST   ? of.member
                        : error == EINVAL ? of.set
                                          : of.holder;
      Write(at, offsetof(io_uring_sqe, off), static_cast<std::uint64_t>(other));
      Write(at, offsetof(io_uring_sqe, fd), static_cast<std::uint32_t>(of.set));
      break;
    }
    // No request of a batch that rcsock carries out changes these.
    case EBADF:
    case EPERM:
      return true;
    default:
      return false;
  }
  Write(at, kLastWord, last);
  return true;
}

// Carries out a request about a stream, or about a set within a set, and has
// `*at` answered.  `alone`: no earlier request has to be done first.
bool Control(const io_uring_sqe& request, bool alone, io_uring_sqe* at) {
  const int number = request.fd;
  const int fd = static_cast<int>(request.off);
  const auto op = static_cast<int>(request.len);
  File* const file = Lookup(fd);
  if (file == nullptr) return false;  // the kernel can do it alone
  if (number < 0 ||
      (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL)) {
    return false;  // it refuses that
  }
  if (file->kind == FileKind::kSock
          ? static_cast<Sock*>(file)->listening.load(std::memory_order_relaxed)
          : LookupSet(number) == nullptr) {
    return false;
  }
  if (ProcessPinned() == base::Reason::kSandboxed) return false;
  constexpr unsigned kFlags =
      IOSQE_IO_LINK | IOSQE_IO_HARDLINK | IOSQE_CQE_SKIP_SUCCESS;
  if (!alone || (request.flags & ~kFlags) != 0 || request.ioprio != 0 ||
      request.rw_flags != 0 || request.buf_index != 0 ||
      request.personality != 0 || request.splice_fd_in != 0 ||
      !MayChange(request) || number >= kMaxFds) {
    PinAll();
    return false;
  }
  BeforeLooking();
  auto* const event = reinterpret_cast<epoll_event*>(request.addr);
  if (op != EPOLL_CTL_DEL &&
      (Null(event) || !base::Readable(event, sizeof *event))) {
    return false;  // EFAULT
  }
  const int error = hook::epoll_ctl(number, op, fd, event) == 0 ? 0 : errno;
  if (error == EFAULT) return false;
  if (Answer(request, error, at)) return true;
  PinAll();
  return false;
}

}  // namespace

bool Batch::See(const io_uring_sqe& request, io_uring_sqe* at) {
  const bool alone = !linked_ && !closes_ && !drained;
  bool remade = false;
  if (!linked_) {
    chain_done_ = true;
    chain_failed_ = false;
  }
  if (request.opcode == IORING_OP_EPOLL_CTL) {
    chain_done_ = false;
    if (!refuses_control_) {
      remade = Control(request, alone && !restricted_, at);
    }
  } else {
    switch (CarryOut(request, at)) {
      case Seen::kRemade:
        remade = true;
        break;
      case Seen::kNotBegun:
        break;
      case Seen::kKernels:
        chain_done_ = false;
        Look(request);
        if (request.opcode == IORING_OP_CLOSE) closes_ = true;
        break;
    }
  }
  linked_ = (request.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK)) != 0;
  links += linked_ ? 1 : 0;
  if ((request.flags & IOSQE_IO_DRAIN) != 0) drained = true;
  return remade;
}

void Restore(io_uring_sqe* at) {
  io_uring_sqe request;
  if (!base::TrySmall(&request, at, sizeof request) ||
      RestoreReplaced(request, at)) {
    return;
  }
  Was was;
  const std::uint64_t last = LastWord(request);
  std::memcpy(&was, &last, sizeof was);
  if (was.is != kRemade || (request.opcode != IORING_OP_NOP &&
                            request.opcode != IORING_OP_EPOLL_CTL)) {
    return;
  }
  WriteOpcode(at, IORING_OP_EPOLL_CTL, request.flags);
  Write(at, offsetof(io_uring_sqe, fd), static_cast<std::uint32_t>(was.fd));
  Write(at, offsetof(io_uring_sqe, off),
        static_cast<std::uint64_t>(was.target));
  Write(at, offsetof(io_uring_sqe, len), static_cast<std::uint32_t>(was.op));
  Write(at, offsetof(io_uring_sqe, rw_flags), std::uint32_t{0});
  Write(at, kLastWord, std::uint64_t{0});
}

void RefusingForkChild() {
  refusing_latch.Reset();
  refusing_latch.AssertUnshared();
  refusing = {};  // closed, as all descriptors of rcsock
}

void PinAll() {
  if (!InBorrowedMemory()) PinProcess(base::Reason::kPinnedIoUring);
}

void AfterMaking(unsigned flags, int version) {
  if ((flags & ~kKnownFlags) != 0 || version > kNewestKnown) PinAll();
}

void BeforeRegister(const int* fds, unsigned count) {
  if (Null(fds) || InBorrowedMemory()) return;
  // For an inaccessible array the kernel reports EFAULT.  So the kernel reads
  // it here, too.
  int some[64];
  for (unsigned from = 0; from < count;) {
    const unsigned n = std::min<unsigned>(count - from, std::size(some));
    const iovec here{some, n * sizeof some[0]};
    const iovec there{const_cast<int*>(fds + from), here.iov_len};
    const ssize_t got = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    if (got < 0) {
      if (errno != EFAULT) PinAll();  // a filter forbids this read
      return;
    }
    // Up to a fault the kernel, too, takes the requests that it can read.
    const auto whole = static_cast<unsigned>(got) / sizeof some[0];
    for (unsigned i = 0; i < whole; ++i) Leave(some[i]);
    if (whole < n) return;
    from += n;
  }
}

void BeforeRegister(int fd, unsigned operation) {
  // With a place in a table of the kernel's, the ring may be any.
  constexpr unsigned kByPlace = 1u
                                << 31;   // IORING_REGISTER_USE_REGISTERED_RING
  constexpr unsigned kResizeRings = 33;  // IORING_REGISTER_RESIZE_RINGS
  const bool any = (operation & kByPlace) != 0;
  switch (operation & ~kByPlace) {
    case IORING_REGISTER_FILES:
    case IORING_REGISTER_FILES_UPDATE:
    case IORING_REGISTER_FILES2:
    case IORING_REGISTER_FILES_UPDATE2:
      PinAll();
      break;
    case IORING_REGISTER_RESTRICTIONS:
      Restrict(any ? -1 : fd);
      break;
    case kResizeRings:
      // From then on it has other memory.
      if (any) {
        BeforeClose(0, ~0u);
      } else {
        BeforeClose(fd);
      }
      break;
    default:
      break;
  }
}

}  // namespace rcsock::posix::uring
