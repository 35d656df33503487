#ifndef RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_
#define RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_

#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>

#include "lib/base/unique_fd.h"

namespace rcsock::rendezvous {

class Core;

// Where `rcsock stat` asks this process what its streams do: an abstract
// AF_UNIX name, "rcsock/1/stat/" and the conductor's uuid in hex, listed in
// /proc/net/unix.  Who connects, and is this user or root, gets one record with
// one descriptor, a sealed memfd, and then the end of the connection; the
// record is in its socket's queue by then, so a slow reader holds up nobody.
//
// Threads: the conductor's.
class Inspection {
 public:
  explicit Inspection(Core* core) : core_(core) {}
  // Without a descriptor for it nobody can ask, and that is all.
  void Open();
  void Close();
  int fd() const { return fd_.get(); }

 private:
  void Wait();
  void Accept();

  Core* const core_;
  base::UniqueFd fd_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> listener_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_INSPECTION_H_
