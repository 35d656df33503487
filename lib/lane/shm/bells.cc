#include "lib/lane/shm/bells.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "lib/base/critical.h"
#include "lib/lane/shm/memory.h"

namespace rcsock::lane::shm {

void KickFd(int fd) {
  if (fd < 0) return;
  const int saved = errno;
  const std::uint64_t one = 1;
  if (::syscall(SYS_write, fd, &one, sizeof(one)) < 0 && errno == EAGAIN) {
    // A process has filled the counter. Nothing reads the counter for its
    // value. So it is emptied, so that one peer cannot keep the others from
    // waking this process.
    EmptyFd(fd);
    ::syscall(SYS_write, fd, &one, sizeof(one));
  }
  errno = saved;
}

void EmptyFd(int fd) {
  const int saved = errno;
  std::uint64_t count;
  iovec iov{&count, sizeof(count)};
  // O_NONBLOCK belongs to the open file. A peer has that file too, and may have
  // taken O_NONBLOCK away. RWF_NOWAIT belongs to this call.
  const long n = ::syscall(SYS_preadv2, fd, &iov, 1, -1L, -1L, RWF_NOWAIT);
  // An old kernel, or a filter that does not know the call.
  if (n < 0 && errno != EAGAIN) {
    ::syscall(SYS_read, fd, &count, sizeof(count));
  }
  errno = saved;
}

std::unique_ptr<Bells> Bells::Create(std::uint64_t most_ring) {
  base::UniqueFd fd = CreateMemory("rcsock-bells", sizeof(BellPage));
  if (!fd.ok()) return nullptr;
  void* page = MapMemory(fd.get(), sizeof(BellPage), true);
  if (page == nullptr) return nullptr;
  static_cast<BellPage*>(page)->heavy.store(
      base::barriers.processes.load() ? 1 : 0, std::memory_order_relaxed);
  const std::uint32_t ring = most_ring == 0 ? kRingBytes : RingFor(most_ring);
  static_cast<BellPage*>(page)->most_ring.store(ring,
                                                std::memory_order_relaxed);
  if (!SealReadOnly(fd.get())) {
    UnmapMemory(page, sizeof(BellPage));
    return nullptr;
  }
  return std::unique_ptr<Bells>(
      new Bells(std::move(fd), static_cast<BellPage*>(page), ring));
}

Bells::Bells(base::UniqueFd page_fd, BellPage* page, std::uint32_t most_ring)
    : page_fd_(std::move(page_fd)), page_(page), most_ring_(most_ring) {
  for (auto& fd : fds_) fd.store(-1, std::memory_order_relaxed);
}

Bells::~Bells() {
  for (auto& fd : fds_) {
    const int number = fd.load(std::memory_order_relaxed);
    if (number >= 0) base::CloseRaw(number);
  }
  UnmapMemory(page_, sizeof(BellPage));
}

int Bells::EnsureBell(int k) {
  const base::Critical critical;
  base::LatchGuard hold(latch_);
  int fd = fds_[k].load(std::memory_order_relaxed);
  if (fd < 0) {
    fd = base::OpenHigh(
        [&] { return ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK); });
    fds_[k].store(fd, std::memory_order_release);
  }
  return fd;
}

void Bells::Arm(int k, bool nap) {
  const base::Critical critical;
  {
    base::LatchGuard hold(counts_[k].latch);
    ++counts_[k].sleepers;
    auto& word = page_->bells[k].armed;
    const std::uint64_t old = word.load(std::memory_order_relaxed);
    word.store(old + 1 + (old & 1), std::memory_order_relaxed);
  }
  // The armed word is stored before the caller looks for work. A sender stores
  // its message, fences, and looks at the armed word. Its fence is light if
  // this one is heavy. One of the two sees the other. If another thread has
  // changed the word since, it has a later generation, and is odd while this
  // thread sleeps.
  //
  // The heavy fence is a system call, and only for other processes: in this
  // process all threads fence in full (lane::Board). If shared_ is still false
  // after this fence, the word was stored before any other process could map
  // the page.
  base::FullFence();
  if (!nap && shared_.load(std::memory_order_seq_cst)) {
    base::HeavyFenceProcesses();
  }
}

void Bells::Disarm(int k) {
  const base::Critical critical;
  base::LatchGuard hold(counts_[k].latch);
  std::uint32_t& sleepers = counts_[k].sleepers;
  if (sleepers == 0) return;
  --sleepers;
  auto& word = page_->bells[k].armed;
  // If other threads still sleep, they get a new generation. The kick that
  // ended this sleep may have woken none of them, since an epoll set wakes one
  // thread for it. Their old generation has no second kick.
  word.store(word.load(std::memory_order_relaxed) + (sleepers == 0 ? 1 : 2),
             std::memory_order_relaxed);
  FullFence();
}

void Bells::Renew(int k) {
  const base::Critical critical;
  {
    base::LatchGuard hold(counts_[k].latch);
    if (counts_[k].sleepers == 0) return;
    auto& word = page_->bells[k].armed;
    word.store(word.load(std::memory_order_relaxed) + 2,
               std::memory_order_relaxed);
  }
  // As in Arm. A sender that still sees the old generation, and does not kick,
  // has stored its message before the caller looks.
  base::FullFence();
  if (shared_.load(std::memory_order_seq_cst)) base::HeavyFenceProcesses();
}

bool Bells::Armed(int k) const {
  return (page_->bells[k].armed.load(std::memory_order_relaxed) & 1) != 0;
}

void Bells::Kick(int k) { KickFd(bell_fd(k)); }

void Bells::Abandon() {
  latch_.Reset();
  for (auto& count : counts_) count.latch.Reset();
  for (auto& fd : fds_) {
    const int number = fd.exchange(-1, std::memory_order_relaxed);
    if (number >= 0) base::CloseRaw(number);
  }
  page_fd_.reset();
  // The words stay at their place, but are the child's own: the parent has
  // armed for itself what the child disarms there.
  ForgetMemory(page_, sizeof(BellPage));
}

}  // namespace rcsock::lane::shm
