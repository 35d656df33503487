#ifndef RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_
#define RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_

#include <memory>

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/name_listener.h"

namespace rcsock::rendezvous {

class Core;

// Where `rcsock stat` asks this process what its streams do: an abstract
// AF_UNIX name, "rcsock/1/stat/" and the conductor's uuid in hex, listed in
// /proc/net/unix.  Who connects, and is this user or root, gets one record with
// one descriptor, a sealed memfd, and then the end of the connection; the
// record is in its socket's queue by then, so a slow reader holds up nobody.
//
// Threads: within turns of the conductor (Step).
class Inspection {
 public:
  explicit Inspection(Core* core) : core_(core) {}
  // Without a descriptor for it nobody can ask, and that is all.
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
