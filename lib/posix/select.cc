// select(2) of streams: a poll(2) of what is in its sets.

#include <fcntl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>

#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/listing.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/epoll.h"
#include "lib/posix/poll.h"
#include "lib/posix/process.h"
#include "lib/posix/select_sets.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

namespace {

constexpr int kFewDescriptors = 64;

}  // namespace

int SelectTable(int count) {
  // The largest size that has been seen.  The table never shrinks.
  static std::atomic<int> size{FD_SETSIZE};
  const int known = size.load(std::memory_order_relaxed);
  if (count <= known) return count;
  // It is not known which calls a filter lets pass.  All streams are on TCP
  // there.
  if (ProcessPinned() == base::Reason::kSandboxed) return count;
  const int saved = errno;
  const auto open = [](int fd) { return !base::IsInternalFdOrGone(fd); };
  int top = fd_high.load(std::memory_order_relaxed);
  if (open(count - 1)) {
    top = count - 1;  // the set is as large as it has to be
  } else if (!base::EachDescriptor(known, [&](int fd) {
               if (fd > top && !base::IsInternalFdOrGone(fd)) top = fd;
             })) {
    for (int fd = count - 1; fd > top; --fd) {
      if (open(fd)) top = fd;
    }
  }
  errno = saved;
  int now = known;
  while (now <= top) now *= 2;  // as the kernel's table grows
  for (int before = known; before < now;) {
    if (size.compare_exchange_weak(before, now)) break;
  }
  return count < now ? count : now;
}

int EngineSelect(int count, fd_set* in, fd_set* out, fd_set* except,
                 std::int64_t timeout_ns, const sigset_t* mask,
                 std::int64_t* left_ns, bool may) {
  if (count <= 0) return kNotMine;
  const SelectInput sets{count, in, out, except};
  int wanted = 0;
  bool mine = may;
  const bool there = sets.ForEach([&](int fd, auto...) {
    ++wanted;
    File* file = Lookup(fd);
    if (file == nullptr || mine) return;
    mine = file->kind == FileKind::kSock
               ? static_cast<Sock*>(file)->mode() == Mode::kEngine
               : static_cast<EpollSet*>(file)->LookedAtFromOutside();
  });
  // The kernel reports a bad pointer.
  if (!mine || !there) return kNotMine;
  pollfd stack[kFewDescriptors];
  std::unique_ptr<pollfd[]> heap;
  pollfd* fds = stack;
  if (wanted > kFewDescriptors) {
    heap.reset(new (std::nothrow) pollfd[static_cast<std::size_t>(wanted)]);
    fds = heap.get();
    if (fds == nullptr) {
      errno = ENOMEM;
      return -1;
    }
  }
  int n = 0;
  sets.ForEach([&](int fd, unsigned long bit, unsigned long i, unsigned long o,
                   unsigned long e) {
    short events = 0;
    if (i & bit) events |= POLLIN | POLLRDNORM | POLLRDBAND;
    if (o & bit) events |= POLLOUT | POLLWRNORM | POLLWRBAND;
    if (e & bit) events |= POLLPRI;
    // Another thread may add to the sets meanwhile.
    if (n < wanted) fds[n++] = {fd, events, 0};
  });
  const bool timed = left_ns != nullptr && timeout_ns > 0;
  const std::uint64_t start = timed ? base::NowNs() : 0;
  const int r = EnginePoll(fds, static_cast<nfds_t>(n), timeout_ns, mask, true);
  if (left_ns != nullptr) {
    const auto spent =
        timed ? static_cast<std::int64_t>(base::NowNs() - start) : 0;
    *left_ns = timeout_ns > spent ? timeout_ns - spent : 0;
  }
  if (r < 0) return -1;
  for (int i = 0; i < n; ++i) {
    if (fds[i].revents & POLLNVAL) {
      errno = EBADF;
      return -1;
    }
  }
  const std::size_t words = (static_cast<std::size_t>(count) + 63) / 64;
  // Sets are written in turn, as in the kernel.  If one array is named twice,
  // the last set wins.  If a set cannot be written, the sets before it have
  // their answer.
  int bits = 0;
  const auto tell = [&](fd_set* set, int asked, int told) {
    auto* const word = reinterpret_cast<unsigned long*>(set);
    for (std::size_t w = 0; set != nullptr && w < words; ++w) {
      if (!base::TryStore(word + w, 0ul)) return false;
    }
    for (int i = 0; i < n; ++i) {
      if ((fds[i].events & asked) == 0 || (fds[i].revents & told) == 0)
        continue;
      word[fds[i].fd / 64] |= 1ul << (fds[i].fd % 64);
      ++bits;
    }
    return true;
  };
  if (!tell(in, POLLIN, SelectSets::kIn) ||
      !tell(out, POLLOUT, SelectSets::kOut) ||
      !tell(except, POLLPRI, SelectSets::kExcept)) {
    errno = EFAULT;
    return -1;
  }
  return bits;
}

}  // namespace rcsock::posix
