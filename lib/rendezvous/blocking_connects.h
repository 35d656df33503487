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

// rdma_connect where it blocks (see ConnectBlocks): for as long as the kernel
// tries, minutes where a filter swallows it.  So each call has a thread of its
// own, which ends with it.  They are few, and fewer for each peer, so that one
// behind a filter does not keep the others waiting.
//
// Threads: the conductor's.  The threads it starts touch nothing of this: they
// have copies, and post what has come of the call.
class BlockingConnects {
 public:
  explicit BlockingConnects(Core* core) : core_(core) {}

  // Whether calls to that peer hang that nobody waits for any more, as many as
  // there may be.
  bool Stuck(const Address& peer) const;
  // Calls rdma_connect, sooner or later, and then ConnectReturned.  Keeps the
  // connection until then: the kernel is at work on its id.  0 or an errno.
  int Start(const Address& peer, std::shared_ptr<Connection> connection,
            const ReqBytes& req);
  // Nobody wants it any more.  True: the call has not been made, and will not.
  bool Leave(const Connection* connection);
  // Its call has not returned.
  bool Runs(const Connection* connection) const;
  // No thread can report any more.
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
