#ifndef RCSOCK_LIB_RENDEZVOUS_CM_H_
#define RCSOCK_LIB_RENDEZVOUS_CM_H_

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/rendezvous/address.h"
#include "lib/verbs/verbs.h"

namespace rcsock::rendezvous {

class Core;

// A copy of one event of rdma_cm.  The event is acknowledged before any owner
// handles the copy: an id with an event that is not acknowledged cannot be
// destroyed.
struct CmEvent {
  rdma_cm_event_type type;
  int status;
  rdma_cm_id* id;
  std::array<std::uint8_t, 256> data;
  std::size_t length;
};

// Handles an id's events (rdma_cm_id::context).  Destroys its ids before it
// goes itself.
class CmOwner {
 public:
  virtual ~CmOwner() = default;
  virtual void OnCm(const CmEvent& event) = 0;
  // A listening id has a request.  `id` is the new id.  To drop it is to
  // reject.
  virtual void OnRequest(verbs::Id /*id*/, const CmEvent& /*event*/) {}
};

// The event channel of a conductor, and its ids.
//
// Threads: the conductor's.  The thread that destroys the last id destroys the
// channel, too.
class Cm : public std::enable_shared_from_this<Cm> {
 public:
  static std::shared_ptr<Cm> Make(Core* core, verbs::Error* error);
  Cm(Core* core, verbs::EventChannel channel);

  // Returns null and sets *error if it fails.
  verbs::Id NewId(CmOwner* owner, verbs::Error* error);
  // Returns an id bound to an address of this host, and so to a device.
  // Returns null and sets *error if it fails.
  verbs::Id Bind(CmOwner* owner, const Address& address, std::uint32_t scope,
                 std::uint16_t port, verbs::Error* error);
  // Stops handling events.
  void Close();
  int fd() const { return channel_->fd; }

 private:
  void Wait();
  // Handles a bounded number of events.
  void OnReadable();

  Core* const core_;
  verbs::EventChannel channel_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> descriptor_;
};

// Returns the parameters of an rdma_connect or rdma_accept with private data.
// `retries` says how often the lanes of both ends send again.  Both ends take
// the connecting end's value; nothing reads the accepting end's.
rdma_conn_param ConnectParameters(const void* data, std::size_t length,
                                  std::uint8_t retries);

std::uint32_t ScopeOf(const sockaddr_storage& from);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CM_H_
