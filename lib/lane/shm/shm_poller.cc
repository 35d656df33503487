#include "lib/lane/shm/shm_poller.h"

#include <mutex>
#include <utility>

#include "lib/lane/shm/link.h"

namespace rcsock::lane::shm {

ShmPoller::ShmPoller(Bells* bells, int bell) : bells_(bells), bell_(bell) {
  bells_->EnsureBell(bell);
}

ShmPoller::~ShmPoller() = default;

void ShmPoller::AddLink(std::shared_ptr<Link> link) {
  std::scoped_lock hold(latch_);
  for (const auto& known : links_) {
    if (known == link) return;
  }
  links_.push_back(std::move(link));
}

void ShmPoller::RemoveLink(const Link* link) {
  std::shared_ptr<Link> last;  // may be the last reference: not under the latch
  std::scoped_lock hold(latch_);
  for (auto& known : links_) {
    if (known.get() != link) continue;
    last = std::move(known);
    known = std::move(links_.back());
    links_.pop_back();
    break;
  }
}

int ShmPoller::Poll(Completion* out, int capacity) {
  std::scoped_lock hold(latch_);
  const std::size_t count = links_.size();
  int found = 0;
  // Begins behind the link that filled the last call, so that none starves.
  for (std::size_t i = 0; i < count && found < capacity; ++i) {
    if (next_ >= count) next_ = 0;
    found += links_[next_++]->Drain(bell_, out + found, capacity - found);
  }
  return found;
}

}  // namespace rcsock::lane::shm
