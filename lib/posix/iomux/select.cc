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
#include "lib/base/fail.h"
#include "lib/base/guard.h"
#include "lib/base/listing.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/poll.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/sys/select_sets.h"

namespace rcsock::posix {

namespace {

constexpr int kFewDescriptors = 64;

// What is in the sets of one call, as poll(2) has it.
class Selected {
 public:
  explicit Selected(const SelectInput& sets) : sets_(sets) {}

  // Counts the descriptors in the sets.  `may`: as in EngineSelect.  Returns
  // false if none of them needs the engine, or if the sets are not accessible.
  bool NeedEngine(bool may);
  // Makes the array for poll.  False: there is no memory.
  bool Fill();
  // Polls the array, as of EnginePoll.  *left_ns gets what is left of the time.
  int Poll(std::int64_t timeout_ns, const sigset_t* mask,
           std::int64_t* left_ns);
  // Whether a descriptor is not open.
  bool AnyInvalid() const;
  // Writes the answer into the sets.  Returns the number of bits; -1: some
  // memory is not accessible.
  int Tell(fd_set* in, fd_set* out, fd_set* except) const;

 private:
  bool TellSet(fd_set* set, int asked, int told, int* bits) const;

  const SelectInput sets_;
  int wanted_ = 0;  // how many descriptors are in the sets
  int count_ = 0;   // how many are in the array
  pollfd stack_[kFewDescriptors];
  std::unique_ptr<pollfd[]> heap_;
  pollfd* fds_ = stack_;
};

bool Selected::NeedEngine(bool may) {
  bool mine = may;
  const bool there = sets_.ForEach([&](int fd, auto...) {
    ++wanted_;
    File* file = Lookup(fd);
    if (file == nullptr || mine) return;
    mine = file->kind == FileKind::kSock
               ? static_cast<Sock*>(file)->mode() == Mode::kEngine
               : static_cast<EpollSet*>(file)->LookedAtFromOutside();
  });
  // The kernel reports a bad pointer.
  return mine && there;
}

bool Selected::Fill() {
  if (wanted_ > kFewDescriptors) {
    heap_.reset(new (std::nothrow) pollfd[static_cast<std::size_t>(wanted_)]);
    fds_ = heap_.get();
    if (fds_ == nullptr) return false;
  }
  sets_.ForEach([&](int fd, unsigned long bit, unsigned long i, unsigned long o,
                    unsigned long e) {
    short events = 0;
    if (i & bit) events |= POLLIN | POLLRDNORM | POLLRDBAND;
    if (o & bit) events |= POLLOUT | POLLWRNORM | POLLWRBAND;
    if (e & bit) events |= POLLPRI;
    // Another thread may add to the sets meanwhile.
    if (count_ < wanted_) fds_[count_++] = {fd, events, 0};
  });
  return true;
}

int Selected::Poll(std::int64_t timeout_ns, const sigset_t* mask,
                   std::int64_t* left_ns) {
  const bool timed = left_ns != nullptr && timeout_ns > 0;
  const std::uint64_t start = timed ? base::NowNs() : 0;
  const int r =
      EnginePoll(fds_, static_cast<nfds_t>(count_), timeout_ns, mask, true);
  if (left_ns != nullptr) {
    const auto spent =
        timed ? static_cast<std::int64_t>(base::NowNs() - start) : 0;
    *left_ns = timeout_ns > spent ? timeout_ns - spent : 0;
  }
  return r;
}

bool Selected::AnyInvalid() const {
  for (int i = 0; i < count_; ++i) {
    if (fds_[i].revents & POLLNVAL) return true;
  }
  return false;
}

// Sets are written in turn, as in the kernel.  If one array is named twice, the
// last set wins.  If a set cannot be written, the sets before it have their
// answer.
int Selected::Tell(fd_set* in, fd_set* out, fd_set* except) const {
  int bits = 0;
  return TellSet(in, POLLIN, SelectSets::kIn, &bits) &&
                 TellSet(out, POLLOUT, SelectSets::kOut, &bits) &&
                 TellSet(except, POLLPRI, SelectSets::kExcept, &bits)
             ? bits
             : -1;
}

bool Selected::TellSet(fd_set* set, int asked, int told, int* bits) const {
  const std::size_t words = (static_cast<std::size_t>(sets_.count) + 63) / 64;
  auto* const word = reinterpret_cast<unsigned long*>(set);
  for (std::size_t w = 0; set != nullptr && w < words; ++w) {
    if (!base::TryStore(word + w, 0ul)) return false;
  }
  for (int i = 0; i < count_; ++i) {
    if ((fds_[i].events & asked) == 0 || (fds_[i].revents & told) == 0) {
      continue;
    }
    unsigned long* const at = word + fds_[i].fd / 64;
    unsigned long all = 0;
    if (!base::TryLoad(at, &all)) return false;
    all |= 1ul << (fds_[i].fd % 64);
    if (!base::TryStore(at, all)) return false;
    ++*bits;
  }
  return true;
}

}  // namespace

int SelectTable(int count) {
  // The largest size that has been seen.  The table never shrinks.
  static std::atomic<int> size{FD_SETSIZE};
  const int known = size.load(std::memory_order_relaxed);
  if (count <= known) return count;
  // Which calls the sandbox's filter lets pass is not known.  All streams are
  // on TCP there.
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
  Selected selected(SelectInput{count, in, out, except});
  if (!selected.NeedEngine(may)) return kNotMine;
  if (!selected.Fill()) return base::Fail(ENOMEM);
  if (selected.Poll(timeout_ns, mask, left_ns) < 0) return -1;
  if (selected.AnyInvalid()) return base::Fail(EBADF);
  const int bits = selected.Tell(in, out, except);
  return bits < 0 ? base::Fail(EFAULT) : bits;
}

}  // namespace rcsock::posix
