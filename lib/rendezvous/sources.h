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
// They are watched by an epoll set of their own, edge-triggered: a source's
// descriptor may stay readable, and Boost.Asio's wait would then end at once,
// for ever.
//
// Threads: Want from any; all else on the conductor's.
class Sources {
 public:
  explicit Sources(Core* core) : core_(core) {}

  // Whoever counts up counts down before the lane goes.
  void Want(lane::Source* source, int delta);
  // Lets go of those that nobody wants: one may be about to go.
  void Sweep();
  void Close();
  // In a child of fork, where nothing else of this is called.
  void CloseInherited() const;

 private:
  struct Entry {
    int wanted = 0;  // latch_'s, of the Sources
    // The conductor's; 0: not armed.  It tells a ring from one that was on its
    // way when the source was let go of.
    std::uint64_t number = 0;
    int fd = -1;  // in the set
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
  // The conductor's.
  std::uint64_t last_number_ = 0;
  std::unique_ptr<boost::asio::posix::stream_descriptor> set_;
  // Entries are erased on the conductor only.
  std::unordered_map<lane::Source*, Entry> entries_ RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SOURCES_H_
