#ifndef RCSOCK_LIB_RENDEZVOUS_RECENT_H_
#define RCSOCK_LIB_RENDEZVOUS_RECENT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "lib/base/clock.h"
#include "lib/rendezvous/address.h"

namespace rcsock::rendezvous {

// Services of which this process has learnt something lately.  Threads: only
// within a turn of the conductor.
class Recent {
 public:
  explicit Recent(std::uint64_t span_ns) : span_ns_(span_ns) {}

  bool Has(const Address& address, std::uint16_t port) {
    const auto it = until_.find({address, port});
    if (it == until_.end()) return false;
    if (base::NowNs() < it->second) return true;
    until_.erase(it);
    return false;
  }

  void Note(const Address& address, std::uint16_t port) {
    const std::uint64_t now = base::NowNs();
    if (until_.size() >= kMost) {
      std::erase_if(until_,
                    [now](const auto& item) { return item.second <= now; });
      if (until_.size() >= kMost) until_.clear();
    }
    until_[{address, port}] = now + span_ns_;
  }

 protected:
  std::map<std::pair<Address, std::uint16_t>, std::uint64_t> until_;

 private:
  static constexpr std::size_t kMost = 1024;
  const std::uint64_t span_ns_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RECENT_H_
