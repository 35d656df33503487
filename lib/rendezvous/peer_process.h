#ifndef RCSOCK_LIB_RENDEZVOUS_PEER_PROCESS_H_
#define RCSOCK_LIB_RENDEZVOUS_PEER_PROCESS_H_

#include <cstdint>

#include "lib/base/unique_fd.h"

namespace rcsock::rendezvous {

// The process at the other end of a channel. /proc shows its descriptors to a
// process that may trace it.
//
// Threads: only within a turn of the conductor (Step).
class PeerProcess {
 public:
  // `channel` is connected with the process.  `thread` is the number of one of
  // its threads, as the process reports it.  The number of the first thread
  // does not do: that thread may have ended, and has no descriptors then.
  PeerProcess(int channel, std::uint32_t thread);

  // Returns false if /proc does not show its descriptors to this process.
  bool visible() const { return descriptors_.ok(); }
  // Whether its descriptor `number` is now the socket with that inode number.
  bool Holds(std::uint32_t number, std::uint32_t inode) const;

 private:
  base::UniqueFd descriptors_;  // /proc/PID/task/THREAD/fd
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_PEER_PROCESS_H_
