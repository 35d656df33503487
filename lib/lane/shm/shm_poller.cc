#include "lib/lane/shm/shm_poller.h"

#include <utility>

#include "lib/lane/shm/link.h"

namespace rcsock::lane::shm {

ShmPoller::ShmPoller(Bells* bells, int bell) : bells_(bells), bell_(bell) {
  bells_->EnsureBell(bell);
}

ShmPoller::~ShmPoller() = default;

void ShmPoller::AddLink(std::shared_ptr<Link> link) {
  base::LatchGuard hold(latch_);
  for (const auto& known : links_) {
    if (known == link) return;
  }
  links_.push_back(std::move(link));
}

void ShmPoller::RemoveLink(const Link* link) {
  base::LatchGuard hold(latch_);
  Forget(link);
}

void ShmPoller::RemoveLinks() {
  std::vector<std::shared_ptr<Link>> links;
  base::LatchGuard hold(latch_);
  links_.swap(links);
}

void ShmPoller::Forget(const Link* link) {
  for (auto& known : links_) {
    if (known.get() != link) continue;
    std::swap(known, links_.back());
    links_.pop_back();
    break;
  }
}

int ShmPoller::Poll(Completion* out, int capacity) {
  base::LatchGuard hold(latch_);
  const std::size_t count = links_.size();
  int found = 0;
  // Begins behind the link that filled the last call, so that no link starves.
  Link* dead = nullptr;
  for (std::size_t i = 0; i < count && found < capacity; ++i) {
    if (next_ >= count) next_ = 0;
    Link* link = links_[next_++].get();
    const int n = link->Drain(bell_, out + found, capacity - found);
    if (n == 0 && link->dead()) dead = link;
    found += n;
  }
  // A dead link that has reported all its streams goes: a server must not keep
  // a link for every client that it ever had.
  if (dead != nullptr) Forget(dead);
  return found;
}

}  // namespace rcsock::lane::shm
