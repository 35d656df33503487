#ifndef RCSOCK_LIB_RENDEZVOUS_BLOCKING_ENDS_H_
#define RCSOCK_LIB_RENDEZVOUS_BLOCKING_ENDS_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace rcsock::rendezvous {

class Connection;
class Core;

// Connections whose device went amid an iWARP handshake.  Who destroys such an
// id, or its QP, waits in the kernel for the end of the handshake, of which
// nothing is said any more: so a thread does it, for all that there are, and
// ends.
//
// Threads: the conductor's.  Its own thread has the connections to itself while
// it runs, and then posts that it has done.
class BlockingEnds {
 public:
  explicit BlockingEnds(Core* core) : core_(core) {}

  // Nobody uses the connection, and no call on its id is under way.
  void Add(std::shared_ptr<Connection> connection);
  // No thread can report any more.
  void Close();
  std::size_t size() const { return waiting_.size() + running_.size(); }

 private:
  struct Call;
  static void* Thread(void* argument);

  void Run();
  void Returned();

  Core* const core_;
  std::vector<std::shared_ptr<Connection>> waiting_;
  std::vector<std::shared_ptr<Connection>> running_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_BLOCKING_ENDS_H_
