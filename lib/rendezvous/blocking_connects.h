#ifndef RCSOCK_LIB_RENDEZVOUS_BLOCKING_CONNECTS_H_
#define RCSOCK_LIB_RENDEZVOUS_BLOCKING_CONNECTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "lib/rendezvous/address.h"
#include "lib/rendezvous/rdma_wire.h"

namespace rcsock::rendezvous {

class Connection;
class Core;

// Calls rdma_connect where it blocks (ConnectBlocks).
//
// If a filter swallows the connection, the call lasts for minutes, as long as
// the kernel tries.  So each call has a thread of its own, which ends with the
// call.  Threads are few, and fewer for each peer, so that a peer behind a
// filter does not keep others waiting.
//
// Threads: the conductor's.  The helper threads touch nothing of this object:
// they have copies, and post the result of the call.
class BlockingConnects {
 public:
  explicit BlockingConnects(Core* core) : core_(core) {}

  // Returns whether as many calls to that peer hang as may be, and nothing
  // wants any of them.
  bool Stuck(const Address& peer) const;
  // Calls rdma_connect, sooner or later, and then ConnectReturned.  Keeps the
  // connection until then: the kernel is at work on its id.  Returns 0 or an
  // errno.
  int Start(const Address& peer, std::shared_ptr<Connection> connection,
            const ReqBytes& req);
  // Nothing wants the connection any more.  Returns true if the call has not
  // been made, and will not be.
  bool Leave(const Connection* connection);
  // Whether its call has not returned.
  bool Runs(const Connection* connection) const;
  // The conductor ends: no thread can report any more.
  void Close();
  std::size_t size() const { return waiting_.size() + running_.size(); }

 private:
  struct Entry {
    Address peer;
    std::shared_ptr<Connection> connection;
    ReqBytes req;
    bool left = false;
  };
  struct Call;
  static void* Thread(void* argument);

  bool Room(const Address& peer) const;
  int Run(Entry entry);
  void Returned(std::uint64_t number, int error);

  Core* const core_;
  std::deque<Entry> waiting_;
  std::map<std::uint64_t, Entry> running_;
  std::uint64_t last_ = 0;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_BLOCKING_CONNECTS_H_
