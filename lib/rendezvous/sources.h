#ifndef RCSOCK_LIB_RENDEZVOUS_SOURCES_H_
#define RCSOCK_LIB_RENDEZVOUS_SOURCES_H_

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "lib/base/latch.h"
#include "lib/lane/poller.h"

namespace rcsock::rendezvous {

class Core;

// The sources that the conductor drains: those of lanes that ring bell 0.
//
// An edge-triggered epoll set of its own watches them.  A source's descriptor
// may stay readable, and a wait of Boost.Asio would then end at once, for ever.
//
// Threads: any for Want; the conductor's for the rest.
class Sources {
 public:
  explicit Sources(Core* core) : core_(core) {}

  // Counts the lanes that want `source` drained.  A caller that counts up
  // counts down before its lane goes.
  void Want(lane::Source* source, int delta);
  // Forgets the sources that no lane wants.  One of them may be about to go.
  void Sweep();
  void Close();
  // Called in a child of fork, where nothing else of this object is called.
  void CloseInherited() const;

 private:
  struct Entry {
    int wanted = 0;  // under latch_ of the Sources
    // The conductor's.  0: not armed.  Tells a new ring from a ring that was
    // under way when the conductor let go of the source.
    std::uint64_t number = 0;
    int fd = -1;  // in the epoll set
  };
  bool EnsureSet();
  void Watch(lane::Source* source);
  void Wait();
  void OnRings();
  void OnRing(std::uint64_t number);
  void LetGo(lane::Source* source, Entry* entry);

  Core* const core_;
  base::Latch latch_;
  bool closed_ RC_GUARDED_BY(latch_) = false;
  // The two numbers belong to the conductor.
  std::uint64_t last_number_ = 0;
  std::unique_ptr<boost::asio::posix::stream_descriptor> set_;
  // Only the conductor erases entries.
  std::unordered_map<lane::Source*, Entry> entries_ RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SOURCES_H_
