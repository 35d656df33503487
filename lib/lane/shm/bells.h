#ifndef RCSOCK_LIB_LANE_SHM_BELLS_H_
#define RCSOCK_LIB_LANE_SHM_BELLS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/base/barrier.h"
#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/poller.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::lane::shm {

// This process's bells: one page, with an armed word per bell on a line of its
// own, and an eventfd per bell. The page is a memfd that peers can map but not
// write: it gets F_SEAL_FUTURE_WRITE after this process has mapped it. One
// object per process.
//
// Threads: any.
class Bells final : public Ringer {
 public:
  // `most_ring`: the largest ring that this process wants; 0: any. Null on
  // failure (errno: EMFILE, ENOMEM, ...).
  static std::unique_ptr<Bells> Create(std::uint64_t most_ring = 0);
  ~Bells() override;
  Bells(const Bells&) = delete;
  Bells& operator=(const Bells&) = delete;

  int page_fd() const { return page_fd_.get(); }
  std::uint32_t most_ring() const { return most_ring_; }
  // The page's descriptor, to give it to another process.
  int SharePage() {
    shared_.store(true, std::memory_order_seq_cst);
    return page_fd_.get();
  }
  // The eventfd of bell k, made on first use; -1 with errno on failure.
  int EnsureBell(int k);
  // -1: not made yet.
  int bell_fd(int k) const { return fds_[k].load(std::memory_order_acquire); }
  // Counts a sleeper. The word becomes a new odd generation, so that peers that
  // have kicked for an older one kick again. This is a full fence, in other
  // processes too if they have the page, except for a `nap`. A nap is for a
  // sleep that ends by itself soon, or for a look that needs no kick.
  void Arm(int k, bool nap = false);
  // Returns true if Arm and Renew make the heavy fence.
  bool Fences() const {
    return shared_.load(std::memory_order_relaxed) &&
           base::barriers.processes.load(std::memory_order_relaxed);
  }
  // Counts one sleeper less. The word is even again when the last one has gone.
  void Disarm(int k);
  // A kick has reached another thread than the bell's sleepers, which get no
  // other kick in this generation. Makes a new generation, and is a full fence.
  // Then the caller looks, or kicks.
  void Renew(int k);
  bool Armed(int k) const override;
  // Writes the eventfd.
  void Kick(int k) override;
  // For a child of fork: gives up what is the parent's. A sleep may still end
  // here, if a handler has forked inside it.
  void Abandon();

 private:
  Bells(base::UniqueFd page_fd, BellPage* page, std::uint32_t most_ring);

  base::UniqueFd page_fd_;
  BellPage* const page_;
  const std::uint32_t most_ring_;
  std::atomic<bool> shared_{false};  // other processes may map the page
  // The sleepers of one bell, on a line of their own: event loops that have
  // nothing to do with each other do not meet here.
  struct alignas(64) Count {
    base::Latch latch;
    std::uint32_t sleepers RC_GUARDED_BY(latch) = 0;
  };
  Count counts_[kBells];
  base::Latch latch_;
  std::atomic<int> fds_[kBells];  // written under latch_
};

// Adds one to an eventfd. A process that shares it may have filled its counter,
// which is then emptied. If that process has also made it blocking, this call
// waits for that process.
void KickFd(int fd);
// Empties the counter of an eventfd. If the kernel has preadv2(2), this never
// blocks, whatever other processes did to the eventfd.
void EmptyFd(int fd);

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_BELLS_H_
