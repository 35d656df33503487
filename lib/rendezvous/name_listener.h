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

// An AF_UNIX name under which this process can be reached for as long as it
// likes.  Where there is no descriptor for whoever comes, they wait in the
// kernel's queue, and it is looked at ten times a second.
//
// Threads: within turns of the conductor.
class NameListener : public std::enable_shared_from_this<NameListener> {
 public:
  using Visitor = std::function<void(base::PeerSocket)>;

  // Null: the name is taken, or there is no descriptor.
  static std::shared_ptr<NameListener> Make(Core* core, const sockaddr_un& name,
                                            socklen_t length, int backlog,
                                            Visitor visitor);
  NameListener(Core* core, base::PeerSocket fd, Visitor visitor);
  // Whoever made it closes it; the visitor is not called any more.
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
