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
// Threads: Want from any; all else on the conductor's.
class Sources {
 public:
  explicit Sources(Core* core) : core_(core) {}

  // Whoever counts up counts down before the lane goes.
  void Want(lane::Source* source, int delta);
  // Lets go of those that nobody wants: one may be about to go.
  void Sweep();
  void Close();

 private:
  struct Entry {
    int wanted = 0;  // latch_'s
    // The conductor's: null: not armed.  The number tells a ring from one that
    // was on its way when the source was let go of.
    std::uint32_t number = 0;
    std::unique_ptr<boost::asio::posix::stream_descriptor> descriptor;
  };
  void Watch(lane::Source* source);
  void Wait(lane::Source* source, Entry* entry);
  void OnRing(lane::Source* source, std::uint32_t number);
  void LetGo(lane::Source* source, Entry* entry);

  Core* const core_;
  base::Latch latch_;
  bool closed_ = false;
  std::uint32_t last_number_ = 0;  // the conductor's
  // Entries are erased on the conductor only.
  std::unordered_map<lane::Source*, Entry> entries_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SOURCES_H_
