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

// The RDMA state of a conductor.  The first stream that looks for an RDMA lane
// makes it.
//
// Threads: the conductor's.
class Rdma {
 public:
  // Returns null and sets *why if it fails.
  static std::unique_ptr<Rdma> Make(Core* core, base::Reason* why);
  Rdma(Core* core, std::shared_ptr<Cm> cm);
  ~Rdma();
  // The conductor ends, and its sessions have gone.  Every lane is lost.
  void Close();

  Core* core() const { return core_; }
  const std::shared_ptr<Cm>& cm() const { return cm_; }
  const ClusterKey& key() const { return key_; }
  // Returns the RDMA port at which peers find the streams of a TCP port.
  static std::uint16_t ServicePort(const ibv_context* context,
                                   std::uint16_t port);

  // --- Devices
  // Returns the device that `id` is bound to.  Returns null and sets *why if it
  // fails.
  std::shared_ptr<Device> DeviceOf(const rdma_cm_id* id, base::Reason* why);
  // Some lane of some device has put off a send.
  void FlushSoon();
  void LoseDevice(const ibv_context* context);
  // The device has gone.  Drops its listeners, and what waits there.
  void Forget(Device* device);
  // Ends every lane of a context, of one of its ports, or of a QP.  A null
  // context means all of them.
  void LoseLanes(const ibv_context* context, base::Reason why);
  void LosePort(const ibv_context* context, int port, base::Reason why);
  void LoseQp(const ibv_context* context, std::uint32_t qp_num,
              base::Reason why);
  // Calls OnAsync of each device.  Returns true if there may be more events.
  bool LookAtDevices();
  void LastWqeReached(const ibv_context* context, std::uint32_t qp_num);
  // An address of a device may have gone, or may lead to another device.  A
  // moment later, this ends the lanes whose address has left their device.  It
  // moves listeners to where their address leads now, at the ports that peers
  // know.  While an address leads nowhere, it looks again for two and a half
  // seconds.
  void AddressesMayHaveMoved();
  void Add(Connection* connection) { connections_.insert(connection); }
  void Remove(Connection* connection) { connections_.erase(connection); }

  // --- Connecting
  // Takes a turn to connect.  Turns are limited: each handshake takes a QP, and
  // takes it in vain if the peer is plain.  Returns false if the meeting must
  // wait: OnTurn is called later.
  bool TakeTurn(const std::shared_ptr<RdmaMeeting>& meeting);
  void EndTurn();
  BlockingConnects* connects() { return &connects_; }
  // Keeps a connection that nothing uses until it may be destroyed.
  void Park(std::shared_ptr<Connection> connection);
  void Unpark(Connection* connection);
  // If the device of a parked connection has gone, a thread of its own destroys
  // the connection: no event of its handshake will come.
  void EndIfGone(Connection* connection);
  BlockingEnds* ends() { return &ends_; }
  LaneEnds* lane_ends() { return &lane_ends_; }

  // --- Accepting
  // Returns this process's own listener at an address.  Returns null and sets
  // *why if it fails.
  Listener* OwnListener(const Address& address, std::uint32_t scope,
                        base::Reason* why);
  // Returns the directory of a port, which knows the owners of its connections.
  // Returns null and sets *why if it fails.
  std::shared_ptr<Directory> DirectoryOf(const Address& address,
                                         std::uint32_t scope,
                                         std::uint16_t port, base::Reason* why);
  // No stream needs the directory.  Frees its port.
  void Retire(Directory* directory);
  void OnRequest(Listener* listener, verbs::Id id, const CmEvent& event);
  void Reject(verbs::Id id, const stream::Nonce& nonce, Rej rej);
  // The tuple waits now in the process that listens at `port`; 0 means this
  // process.  Answers the REQ that is held for it, if any.
  void Answer(const Tuple& tuple, std::uint16_t port);
  void DropHeld(const rdma_cm_id* id);
  // Drops the REQs that came to this listener.  The listener is about to go,
  // and handles their events.
  void DropHeldOf(const Listener* listener);
  // Refuses the REQs that are held, and frees the ports for other processes.
  // When a stream waits, this process listens again.
  void StopListening();
  // Marks a REQ's nonce, which is good for one lane.  Returns false if it was
  // used.
  bool UseNonce(const stream::Nonce& nonce);

  // --- Completions of lanes that no stream has yet
  void* NewCookie(RdmaMeeting* meeting);
  void DropCookie(void* cookie) { cookies_.erase(cookie); }
  // A cookie is odd.  The cookies of lib/posix are pointers.
  static bool IsCookie(const void* cookie) {
    return (reinterpret_cast<std::uintptr_t>(cookie) & 1) != 0;
  }
  void OnCompletion(const lane::Completion& completion);

  struct Counts {
    std::size_t devices, listeners, directories, held, connecting, connections,
        parked, calls, ending;
  };
  Counts counts() const;
  // Called in a child of fork.  Closes all descriptors but those of rdma_cm and
  // of verbs.
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
  // Where an address leads now.
  struct Place {
    // Null: nowhere.  If `unknown`, rdma_cm could not answer.
    ibv_context* context = nullptr;
    int port = 0;
    bool unknown = false;
    bool Is(const rdma_cm_id* id) const {
      return id->verbs == context &&
             (id->port_num == port || id->port_num == 0);
    }
  };
  class AddressLook;
  Place PlaceOf(const Address& address, std::uint32_t scope);
  // Moves this process's own listeners to where their addresses lead.
  void MoveOwn(AddressLook* look);
  bool MoveListener(std::unique_ptr<Listener>* listener);
  void WaitHeld();
  void OnHeldTimer();
  RdmaMeeting* Waiting(const Tuple& tuple);

  Core* const core_;
  const std::shared_ptr<Cm> cm_;
  const ClusterKey key_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::set<Connection*> connections_;  // those that have a lane
  std::vector<std::shared_ptr<Connection>> parked_;
  // The keys of both maps are Scoped addresses.
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
