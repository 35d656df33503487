#ifndef RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_
#define RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_

#include <memory>

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/name_listener.h"

namespace rcsock::rendezvous {

class Core;

// Where `rcsock stat` asks this process what its streams do.  The abstract
// AF_UNIX name is "rcsock/1/stat/" and the conductor's uuid in hex;
// /proc/net/unix lists the name.  A client of this user, or root, gets one
// record with one descriptor, a sealed memfd.  Then the connection ends.  The
// record stays in the client's queue, so a slow reader holds up nobody.
//
// Threads: only within a turn of the conductor (Step).
class Inspection {
 public:
  explicit Inspection(Core* core) : core_(core) {}
  // Opens the name.  If there is no descriptor for it, no client can ask.
  void Open();
  void Close();
  int fd() const { return listener_ == nullptr ? -1 : listener_->fd(); }

 private:
  void Answer(base::PeerSocket asker);

  Core* const core_;
  std::shared_ptr<NameListener> listener_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_
