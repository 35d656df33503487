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

// This process's doorbells: one page (a memfd that peers can map but not write:
// F_SEAL_FUTURE_WRITE after our own mapping) with an armed word per bell on a
// line of its own, and an eventfd per bell.  One per process.
//
// Any thread may call anything.
class Bells final : public Ringer {
 public:
  // `most_ring`: the largest ring that this process wants; 0: any.  Null on
  // failure (errno: EMFILE, ENOMEM, ...).
  static std::unique_ptr<Bells> Create(std::uint64_t most_ring = 0);
  ~Bells() override;
  Bells(const Bells&) = delete;
  Bells& operator=(const Bells&) = delete;

  int page_fd() const { return page_fd_.get(); }
  std::uint32_t most_ring() const { return most_ring_; }
  // The same, to give it to another process.
  int SharePage() {
    shared_.store(true, std::memory_order_seq_cst);
    return page_fd_.get();
  }
  // The eventfd of bell k, made on first use; -1 with errno on failure.
  int EnsureBell(int k);
  // -1: not made yet.
  int bell_fd(int k) const { return fds_[k].load(std::memory_order_acquire); }
  // Counts; the word becomes a new odd generation, so that peers that have
  // kicked for an older one kick again; full fence.  `nap`: only here, for a
  // sleep that ends by itself soon, and a look that needs no kick.
  void Arm(int k, bool nap = false);
  // Whether Arm and Renew make the heavy fence.
  bool Fences() const {
    return shared_.load(std::memory_order_relaxed) &&
           base::barriers.processes.load(std::memory_order_relaxed);
  }
  // Even again when the last sleeper has gone.
  void Disarm(int k);
  // A kick has reached somebody else than its sleepers, who will get none for
  // this generation any more: a new one; full fence.  Then the caller looks, or
  // kicks.
  void Renew(int k);
  bool Armed(int k) const override;
  // Writes the eventfd.
  void Kick(int k) override;
  // In a child of fork: lets go of what is the parent's.  A sleep that a
  // handler has forked in may still end here.
  void Abandon();

 private:
  Bells(base::UniqueFd page_fd, BellPage* page, std::uint32_t most_ring);

  base::UniqueFd page_fd_;
  BellPage* const page_;
  const std::uint32_t most_ring_;
  std::atomic<bool> shared_{false};  // others may map the page
  // Of one bell; on a line of its own: event loops that have nothing to do with
  // each other do not meet here.
  struct alignas(64) Count {
    base::Latch latch;
    std::uint32_t sleepers RC_GUARDED_BY(latch) = 0;
  };
  Count counts_[kBells];
  base::Latch latch_;
  std::atomic<int> fds_[kBells];  // written with latch_
};

// Adds one to an eventfd.  Who shares it may have filled its counter, which is
// then emptied; if he has also made it blocking, this waits for him.
void KickFd(int fd);
// Empties the counter of an eventfd; never blocks, whatever others did to it.
void EmptyFd(int fd);

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_BELLS_H_
