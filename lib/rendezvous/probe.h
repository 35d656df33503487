#ifndef RCSOCK_LIB_RENDEZVOUS_PROBE_H_
#define RCSOCK_LIB_RENDEZVOUS_PROBE_H_

#include <sys/socket.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

#include "lib/base/unique_fd.h"

namespace rcsock::rendezvous {

class Core;

// A connection that does not block, made before rdma_connect.  Some iWARP
// drivers, siw and erdma, connect TCP inside rdma_connect.  They return only
// when the peer has answered, which may be never.  If the probe gets through,
// rdma_connect does too.
//
// Threads: only within a turn of the conductor (Step).
class Probe : public std::enable_shared_from_this<Probe> {
 public:
  explicit Probe(Core* core);
  ~Probe();
  // Calls `done` with 0 or an errno in a later turn, but never after Retire.
  // Returns false and sets errno if it cannot start.
  bool Start(const sockaddr_storage& local, const sockaddr_storage& peer,
             std::function<void(int)> done);
  // Closes the connection two seconds later. siw gives up listening if a
  // connection ends before siw has accepted it.
  void Retire();

 private:
  Core* const core_;
  base::UniqueFd fd_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer timer_;
  std::function<void(int)> done_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_PROBE_H_
