#ifndef RCSOCK_LIB_RENDEZVOUS_SILENT_H_
#define RCSOCK_LIB_RENDEZVOUS_SILENT_H_

#include <cstdint>

#include "lib/base/clock.h"
#include "lib/rendezvous/recent.h"

namespace rcsock::rendezvous {

// Services whose host has not answered an RDMA handshake.  On RoCE every host
// without a device is silent: nothing there would refuse.  Each vain handshake
// holds a turn for seconds, and others stand in line behind it.  So after the
// first vain handshake, one at a time goes to the service, with pauses.
//
// Threads: only within a turn of the conductor.
class Silent : private Recent {
 public:
  // A try takes `try_ns` at most.  A pause of `pause_ns` follows it.
  Silent(std::uint64_t pause_ns, std::uint64_t try_ns)
      : Recent(pause_ns), try_ns_(try_ns) {}

  using Recent::Note;

  // Returns whether a meeting may try the service now.  After a vain try, only
  // one meeting at a time may.
  bool MayTry(const Address& host, std::uint16_t port) {
    const auto it = until_.find({host, port});
    if (it == until_.end()) return true;
    const std::uint64_t now = base::NowNs();
    if (now < it->second) return false;
    it->second = now + try_ns_;
    return true;
  }
  void Answered(const Address& host, std::uint16_t port) {
    until_.erase({host, port});
    answering_.Note(host, port);
  }
  // Whether the service has answered lately.  A packet without an answer then
  // was lost.
  bool Answers(const Address& host, std::uint16_t port) {
    return answering_.Has(host, port);
  }

 private:
  static constexpr std::uint64_t kAnswersFor = 60'000'000'000;
  const std::uint64_t try_ns_;
  Recent answering_{kAnswersFor};
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SILENT_H_
