#ifndef RCSOCK_LIB_LANE_SHM_SHM_POLLER_H_
#define RCSOCK_LIB_LANE_SHM_SHM_POLLER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "lib/base/latch.h"
#include "lib/lane/poller.h"
#include "lib/lane/shm/bells.h"

namespace rcsock::lane::shm {

class Link;

// The poller of one bell over every link of the process. AddLink and RemoveLink
// may run beside Poll.
class ShmPoller final : public Poller {
 public:
  // `bells` outlives the poller.
  ShmPoller(Bells* bells, int bell);
  ~ShmPoller() override;

  void AddLink(std::shared_ptr<Link> link);
  void RemoveLink(const Link* link);
  void RemoveLinks();

  int Poll(Completion* out, int capacity) override;
  void Arm() override { bells_->Arm(bell_); }
  void Disarm() override { bells_->Disarm(bell_); }
  // Arms for a sleep that ends by itself soon. Saves nothing if Arm makes no
  // heavy fence.
  void ArmForNap() { bells_->Arm(bell_, true); }
  bool Fences() const { return bells_->Fences(); }
  void Renew() { bells_->Renew(bell_); }
  int fd() const override { return bells_->bell_fd(bell_); }
  void Kick() override { bells_->Kick(bell_); }
  int bell() const { return bell_; }

 private:
  void Forget(const Link* link) RC_REQUIRES(latch_);

  Bells* const bells_;
  const int bell_;
  base::Latch latch_;
  std::vector<std::shared_ptr<Link>> links_ RC_GUARDED_BY(latch_);
  // The link that the next Poll begins with.
  std::size_t next_ RC_GUARDED_BY(latch_) = 0;
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_SHM_POLLER_H_
