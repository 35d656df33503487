#include "lib/posix/hooks/uring_complete.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix::uring {
namespace {

constexpr unsigned kEntries = 64;
// Newer than the headers of Debian 12.
constexpr unsigned kFlagsPass = 1u << 1;     // IORING_MSG_RING_FLAGS_PASS
constexpr unsigned kInjectResult = 1u << 0;  // IORING_NOP_INJECT_RESULT

// The private ring.
struct PrivateRing {
  int fd = -1;
  char* queues = nullptr;
  io_uring_sqe* requests = nullptr;
  io_uring_params of{};
  bool tried = false;
  Abilities able;

  unsigned& At(unsigned offset) {
    return *reinterpret_cast<unsigned*>(queues + offset);
  }
};
constinit base::Latch private_latch;
constinit PrivateRing own RC_GUARDED_BY(private_latch);

void* Map(int fd, std::size_t size, std::uint64_t offset) {
  auto* const at = reinterpret_cast<void*>(
      ::syscall(SYS_mmap, nullptr, size, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_POPULATE, fd, offset));
  if (at == MAP_FAILED) return nullptr;
  ::syscall(SYS_madvise, at, size, MADV_DONTFORK);
  return at;
}

// Returns whether there is a ring.
bool Open() RC_REQUIRES(private_latch) {
  base::UniqueFd fd(base::OpenHighForParent(
      [] { return ::syscall(SYS_io_uring_setup, kEntries, &own.of); }));
  if (!fd.ok() || (own.of.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
      (own.of.features & IORING_FEAT_CQE_SKIP) == 0) {
    return false;
  }
  const std::size_t size = std::max<std::size_t>(
      own.of.sq_off.array + own.of.sq_entries * sizeof(unsigned),
      own.of.cq_off.cqes + own.of.cq_entries * sizeof(io_uring_cqe));
  own.queues = static_cast<char*>(Map(fd.get(), size, IORING_OFF_SQ_RING));
  own.requests = static_cast<io_uring_sqe*>(
      Map(fd.get(), own.of.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  if (own.queues == nullptr || own.requests == nullptr) return false;
  for (unsigned i = 0; i < own.of.sq_entries; ++i) {
    (&own.At(own.of.sq_off.array))[i] = i;
  }
  own.fd = fd.release();
  return true;
}

io_uring_sqe* Next(unsigned at) RC_REQUIRES(private_latch) {
  io_uring_sqe* const request = &own.requests[at & (own.of.sq_entries - 1)];
  std::memset(request, 0, sizeof *request);
  request->flags = IOSQE_CQE_SKIP_SUCCESS;
  return request;
}

// Submits what lies before `tail`.
void Submit(unsigned tail) RC_REQUIRES(private_latch) {
  std::atomic_ref(own.At(own.of.sq_off.tail))
      .store(tail, std::memory_order_release);
  // The kernel takes all completions, or has no memory.
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    const unsigned left =
        tail - std::atomic_ref(own.At(own.of.sq_off.head)).load();
    if (left == 0) break;
    const long taken = ::syscall(SYS_io_uring_enter, own.fd, left, 0,
                                 IORING_ENTER_GETEVENTS, nullptr, 0);
    if (taken < 0 && errno != EAGAIN && errno != EBUSY && errno != EINTR) {
      break;
    }
  }
}

// Discards the private completions, each of which is a failure.  Returns the
// last.
io_uring_cqe Drain() RC_REQUIRES(private_latch) {
  io_uring_cqe last{};
  std::atomic_ref head(own.At(own.of.cq_off.head));
  const unsigned tail = std::atomic_ref(own.At(own.of.cq_off.tail)).load();
  if (head.load() != tail) {
    last = reinterpret_cast<io_uring_cqe*>(
        own.queues + own.of.cq_off.cqes)[(tail - 1) & (own.of.cq_entries - 1)];
  }
  head.store(tail, std::memory_order_release);
  return last;
}

void Fill(io_uring_sqe* request, const Completion& completion, bool flags) {
  request->opcode = IORING_OP_MSG_RING;
  request->fd = completion.ring;
  request->off = completion.data;
  request->len = static_cast<unsigned>(completion.result);
  if (flags && completion.flags != 0) {
    request->rw_flags = static_cast<int>(kFlagsPass);
    request->file_index = completion.flags;
  }
}

// Sends a completion to the private ring, and checks what arrives.
bool Try(std::int32_t result, std::uint32_t flags) RC_REQUIRES(private_latch) {
  const unsigned tail = own.At(own.of.sq_off.tail);
  constexpr std::uint64_t kData = 0x7c5e;
  Fill(Next(tail), {own.fd, kData, result, flags}, true);
  Submit(tail + 1);
  const io_uring_cqe came = Drain();
  return came.user_data == kData && came.res == result && came.flags == flags;
}

bool TryInject() RC_REQUIRES(private_latch) {
  const unsigned tail = own.At(own.of.sq_off.tail);
  io_uring_sqe* const request = Next(tail);
  request->opcode = IORING_OP_NOP;
  request->flags = 0;
  request->rw_flags = static_cast<int>(kInjectResult);
  request->len = 77;
  Submit(tail + 1);
  return Drain().res == 77;
}

}  // namespace

Abilities KernelAbilities() {
  const Critical critical;
  private_latch.lock();
  if (!own.tried) {
    own.tried = true;
    const int saved = errno;
    if (ProcessPinned() == base::Reason::kNone && Open()) {
      own.able.posts = Try(77, 0);
      own.able.flags = Try(78, IORING_CQE_F_MORE);
      own.able.inject = TryInject();
    }
    errno = saved;
  }
  const Abilities able = own.able;
  private_latch.unlock();
  return able;
}

void Complete(const Completion* completions, int count) {
  if (count <= 0) return;
  const int saved = errno;
  const Critical critical;
  private_latch.lock();
  if (own.fd >= 0) {
    unsigned tail = own.At(own.of.sq_off.tail);
    for (int i = 0; i < count; ++i) {
      Fill(Next(tail++), completions[i], own.able.flags);
      if (i + 1 == count || (i + 1) % static_cast<int>(kEntries) == 0) {
        Submit(tail);
        Drain();
      }
    }
  }
  private_latch.unlock();
  errno = saved;
}

void CompleteForkChild() {
  private_latch.Reset();
  private_latch.AssertUnshared();
  own = {};  // closed, as all that is the parent's alone
}

}  // namespace rcsock::posix::uring
