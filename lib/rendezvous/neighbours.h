#ifndef RCSOCK_LIB_RENDEZVOUS_NEIGHBOURS_H_
#define RCSOCK_LIB_RENDEZVOUS_NEIGHBOURS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "lib/rendezvous/address.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {

// Which processes this one has met at which service, the last first.  The next
// connection of the service probably has its other end in one of them.
//
// Threads: only within a turn of the conductor.
class Neighbours {
 public:
  const std::vector<Uuid>& At(const Address& address,
                              std::uint16_t port) const {
    static const auto& nobody = *new std::vector<Uuid>;
    const auto it = known_.find({address, port});
    return it == known_.end() ? nobody : it->second;
  }

  void Note(const Address& address, std::uint16_t port, const Uuid& uuid) {
    if (known_.size() >= kMostServices && !known_.contains({address, port})) {
      known_.clear();
    }
    std::vector<Uuid>& there = known_[{address, port}];
    if (!there.empty() && there.front() == uuid) return;
    std::erase(there, uuid);
    if (there.size() >= kMostThere) there.pop_back();
    there.insert(there.begin(), uuid);
  }

 private:
  static constexpr std::size_t kMostServices = 1024;
  // A few: every connection sends a message to each.
  static constexpr std::size_t kMostThere = 4;
  std::map<std::pair<Address, std::uint16_t>, std::vector<Uuid>> known_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_NEIGHBOURS_H_
