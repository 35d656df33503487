#ifndef RCSOCK_LIB_RENDEZVOUS_RDMA_H_
#define RCSOCK_LIB_RENDEZVOUS_RDMA_H_

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/rendezvous/blocking_connects.h"
#include "lib/rendezvous/blocking_ends.h"
#include "lib/rendezvous/cm.h"
#include "lib/rendezvous/directory.h"
#include "lib/rendezvous/lane_ends.h"
#include "lib/rendezvous/rdma_wire.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/waiting_line.h"

namespace rcsock::rendezvous {

class Connection;
class Device;
class RdmaMeeting;

// What a conductor has of RDMA: made by the first stream that looks for a lane
// on it.
//
// Threads: the conductor's.
class Rdma {
 public:
  // Null: *why.
  static std::unique_ptr<Rdma> Make(Core* core, base::Reason* why);
  Rdma(Core* core, std::shared_ptr<Cm> cm);
  ~Rdma();
  // The conductor ends.  Every lane is lost; the sessions have gone before.
  void Close();

  Core* core() const { return core_; }
  const std::shared_ptr<Cm>& cm() const { return cm_; }
  const ClusterKey& key() const { return key_; }
  // The RDMA port at which the streams of a TCP port are found.
  static std::uint16_t ServicePort(const ibv_context* context,
                                   std::uint16_t port);

  // --- Devices
  // The one that `id` is bound to.  Null: *why.
  std::shared_ptr<Device> DeviceOf(const rdma_cm_id* id, base::Reason* why);
  // On some device something has been put off.
  void FlushSoon();
  void LoseDevice(const ibv_context* context);
  // It is gone: so are its listeners, and what waits there.
  void Forget(Device* device);
  // Every lane of a context (null: of all), or those of one port of it, or the
  // one of a QP.
  void LoseLanes(const ibv_context* context, base::Reason why);
  void LosePort(const ibv_context* context, int port, base::Reason why);
  void LoseQp(const ibv_context* context, std::uint32_t qp_num,
              base::Reason why);
  // Device::OnAsync of each.  True: there may be more events.
  bool LookAtDevices();
  void LastWqeReached(const ibv_context* context, std::uint32_t qp_num);
  // An address of a device may have gone, or lead to another device.  Soon
  // after it, and for two seconds while an address leads nowhere: lanes end
  // whose address has left their device; listeners go where theirs leads now,
  // at the ports that others know.
  void AddressesMayHaveMoved();
  void Add(Connection* connection) { connections_.insert(connection); }
  void Remove(Connection* connection) { connections_.erase(connection); }

  // --- Connecting
  // Handshakes under way at once are limited: each takes a QP, and in vain
  // where the peer is plain.  False: the meeting will be told when it is its
  // turn.
  bool TakeTurn(const std::shared_ptr<RdmaMeeting>& meeting);
  void EndTurn();
  BlockingConnects* connects() { return &connects_; }
  // Keeps a connection nobody wants until it may be destroyed.
  void Park(std::shared_ptr<Connection> connection);
  void Unpark(Connection* connection);
  // One that is parked, and whose handshake nothing will be heard of, is taken
  // apart by a thread of its own.
  void EndIfGone(Connection* connection);
  BlockingEnds* ends() { return &ends_; }
  LaneEnds* lane_ends() { return &lane_ends_; }

  // --- Accepting
  // Where this process is found at an address.  Null: *why.
  Listener* OwnListener(const Address& address, std::uint32_t scope,
                        base::Reason* why);
  // Who knows the owners of the connections to a port.  Null: *why.
  std::shared_ptr<Directory> DirectoryOf(const Address& address,
                                         std::uint32_t scope,
                                         std::uint16_t port, base::Reason* why);
  // Nobody needs it: the port is free again.
  void Retire(Directory* directory);
  void OnRequest(Listener* listener, verbs::Id id, const CmEvent& event);
  void Reject(verbs::Id id, const stream::Nonce& nonce, Rej rej);
  // The tuple waits now, here (port 0) or in the process that listens at
  // `port`: answers the REQ that is held for it, if any.
  void Answer(const Tuple& tuple, std::uint16_t port);
  void DropHeld(const rdma_cm_id* id);
  // Those that have come to this listener, which is about to go: their events
  // would.
  void DropHeldOf(const Listener* listener);
  // Until a stream waits again: what is asked here is refused, and the ports
  // are others' to take.
  void StopListening();
  // A REQ is good for one lane.  False: this one has had its.
  bool UseNonce(const stream::Nonce& nonce);

  // --- Completions of lanes that no stream has yet
  void* NewCookie(RdmaMeeting* meeting);
  void DropCookie(void* cookie) { cookies_.erase(cookie); }
  // Never a pointer: posix's cookies are.
  static bool IsCookie(const void* cookie) {
    return (reinterpret_cast<std::uintptr_t>(cookie) & 1) != 0;
  }
  void OnCompletion(const lane::Completion& completion);

  struct Counts {
    std::size_t devices, listeners, directories, held, connecting, connections,
        parked, calls, ending;
  };
  Counts counts() const;
  // In a child of fork: the descriptors that are not rdma_cm's or verbs'.
  void CloseInherited() const;

 private:
  struct Held {
    verbs::Id id;
    Tuple tuple;
    Req req;
    std::chrono::steady_clock::time_point until;
  };
  void LoseIf(const std::function<bool(const rdma_cm_id*)>& lost,
              base::Reason why);
  void CloseDirectories(const Address& address);
  void WaitToLook(std::chrono::milliseconds pause);
  void LookAtAddresses();
  // Where an address leads to now.
  struct Place {
    // Null: nowhere, or (unknown) it could not be asked.
    ibv_context* context = nullptr;
    int port = 0;
    bool unknown = false;
    bool Is(const rdma_cm_id* id) const {
      return id->verbs == context &&
             (id->port_num == port || id->port_num == 0);
    }
  };
  Place PlaceOf(const Address& address, std::uint32_t scope);
  void WaitHeld();
  void OnHeldTimer();
  RdmaMeeting* Waiting(const Tuple& tuple);

  Core* const core_;
  const std::shared_ptr<Cm> cm_;
  const ClusterKey key_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::set<Connection*> connections_;  // those that have a lane
  std::vector<std::shared_ptr<Connection>> parked_;
  // By Scoped addresses, as the directories.
  std::map<Address, std::unique_ptr<Listener>> own_;
  std::map<std::pair<Address, std::uint16_t>, std::shared_ptr<Directory>>
      directories_;
  std::deque<Held> held_;
  boost::asio::steady_timer held_timer_;
  bool held_waiting_ = false;
  boost::asio::steady_timer address_timer_;
  int address_looks_ = 0;
  bool address_waiting_ = false;
  std::set<stream::Nonce> used_;
  std::deque<stream::Nonce> used_order_;
  int connecting_ = 0;
  WaitingLine<RdmaMeeting> queue_;
  BlockingConnects connects_;
  BlockingEnds ends_;
  LaneEnds lane_ends_;
  std::uintptr_t last_cookie_ = 0;
  std::unordered_map<void*, RdmaMeeting*> cookies_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RDMA_H_
