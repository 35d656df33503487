#ifndef RCSOCK_LIB_RENDEZVOUS_PEER_PROCESS_H_
#define RCSOCK_LIB_RENDEZVOUS_PEER_PROCESS_H_

#include <cstdint>

#include "lib/base/unique_fd.h"

namespace rcsock::rendezvous {

// The process at the other end of a channel, as /proc shows its descriptors to
// whoever may trace it.
//
// Threads: within turns of the conductor (Step).
class PeerProcess {
 public:
  // `channel` is connected with it.  `thread` is the number of one of its
  // threads, as it says itself: its first thread may have ended, and has no
  // descriptors then.
  PeerProcess(int channel, std::uint32_t thread);

  // False: /proc does not show it to us.
  bool visible() const { return descriptors_.ok(); }
  // Whether its descriptor `number` is the socket of that inode number, now.
  bool Holds(std::uint32_t number, std::uint32_t inode) const;

 private:
  base::UniqueFd descriptors_;  // /proc/PID/task/THREAD/fd
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_PEER_PROCESS_H_
