#ifndef RCSOCK_LIB_RENDEZVOUS_BLOCKING_ENDS_H_
#define RCSOCK_LIB_RENDEZVOUS_BLOCKING_ENDS_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace rcsock::rendezvous {

class Connection;
class Core;

// Connections whose device went during an iWARP handshake.  A thread that
// destroys the id of such a connection, or its QP, waits in the kernel for the
// handshake's end, which nothing reports any more.  So one helper thread
// destroys all of these connections, and ends.
//
// Threads: the conductor's.  While the helper thread runs, it alone uses its
// connections.  It posts when it has finished.
class BlockingEnds {
 public:
  explicit BlockingEnds(Core* core) : core_(core) {}

  // Takes a connection that nothing uses.  No call on its id is under way.
  void Add(std::shared_ptr<Connection> connection);
  // The conductor ends: no thread can report any more.
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
