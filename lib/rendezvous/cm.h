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

// One event of rdma_cm, copied: it has been acknowledged before anybody handles
// it, since an id whose event is not cannot be destroyed.
struct CmEvent {
  rdma_cm_event_type type;
  int status;
  rdma_cm_id* id;
  std::array<std::uint8_t, 256> data;
  std::size_t length;
};

// Whom an id's events go to (rdma_cm_id::context).  Destroys its ids before it
// goes itself.
class CmOwner {
 public:
  virtual ~CmOwner() = default;
  virtual void OnCm(const CmEvent& event) = 0;
  // A listening id's: `id` is new, and rejected if it is dropped.
  virtual void OnRequest(verbs::Id /*id*/, const CmEvent& /*event*/) {}
};

// The event channel of a conductor, and its ids.
//
// Threads: the conductor's; destroyed with the last id, by whoever has it then.
class Cm : public std::enable_shared_from_this<Cm> {
 public:
  static std::shared_ptr<Cm> Make(Core* core, verbs::Error* error);
  Cm(Core* core, verbs::EventChannel channel);

  // Null with *error.
  verbs::Id NewId(CmOwner* owner, verbs::Error* error);
  // The same, bound to an address of this host, and so to a device.
  verbs::Id Bind(CmOwner* owner, const Address& address, std::uint32_t scope,
                 std::uint16_t port, verbs::Error* error);
  // No event is handled from now on.
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

// Of an rdma_connect or rdma_accept with private data.  `retries`: how often
// the lanes of both ends send again, as the connecting end says it; the
// accepting end's is not looked at.
rdma_conn_param ConnectParameters(const void* data, std::size_t length,
                                  std::uint8_t retries);

std::uint32_t ScopeOf(const sockaddr_storage& from);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CM_H_
