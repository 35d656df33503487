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

// Some iWARP drivers (siw, erdma) connect TCP inside rdma_connect, and do not
// return before the peer has answered, which may be never.  So a connection
// that does not block goes first; where it gets through, rdma_connect does too.
//
// Threads: within turns of the conductor (Step).
class Probe : public std::enable_shared_from_this<Probe> {
 public:
  explicit Probe(Core* core);
  ~Probe();
  // Calls `done` with 0 or an errno, in a later turn; never after Close. False:
  // errno.
  bool Start(const sockaddr_storage& local, const sockaddr_storage& peer,
             std::function<void(int)> done);
  // Closes the connection after a while: siw gives up listening if one of its
  // connections ends before it has accepted it.
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
