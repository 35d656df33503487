#ifndef RCSOCK_LIB_RENDEZVOUS_NAME_LISTENER_H_
#define RCSOCK_LIB_RENDEZVOUS_NAME_LISTENER_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>

#include "lib/base/foreign_fd.h"
#include "lib/rendezvous/timer.h"

namespace rcsock::rendezvous {

class Core;

// Listens at an AF_UNIX name for as long as this process likes.  If there is no
// descriptor for a visitor, the visitor waits in the kernel's queue.  The
// listener then looks at the queue ten times a second.
//
// Threads: only within a turn of the conductor.
class NameListener : public std::enable_shared_from_this<NameListener> {
 public:
  using Visitor = std::function<void(base::PeerSocket)>;

  // Returns null if the name is taken, or if there is no descriptor.
  static std::shared_ptr<NameListener> Make(Core* core, const sockaddr_un& name,
                                            socklen_t length, int backlog,
                                            Visitor visitor);
  NameListener(Core* core, base::PeerSocket fd, Visitor visitor);
  // The object that made the listener closes it.  The listener calls its
  // visitor function no more.
  void Close();
  int fd() const { return fd_.get(); }

 private:
  void Wait();
  void OnReadable();

  Core* const core_;
  base::PeerSocket fd_;
  const Visitor visitor_;
  boost::asio::posix::stream_descriptor descriptor_;
  Timer pause_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_NAME_LISTENER_H_
