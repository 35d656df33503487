#ifndef RCSOCK_LIB_RENDEZVOUS_ANCHORS_H_
#define RCSOCK_LIB_RENDEZVOUS_ANCHORS_H_

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

// The internal epoll set of every watched anchor, each under the application's
// own descriptor number.  All calls on it are raw: the preload would take them
// for the application's.
//
// Threads: Watch, Rewatch and Unwatch from any; Dispatch, Rebuild on one.
class Anchors {
 public:
  bool Init();  // false: errno
  // Forgets all; Watch fails from now on.
  void Close();
  // In a child of fork: the anchors under numbers of rcsock's own, of
  // connections that the application had closed.  They would outlive the
  // parent's end of them here, and the peer would not hear of it.
  void CloseInherited();
  int fd() const { return set_.get(); }

  bool Watch(int fd, std::shared_ptr<AnchorWatcher> watcher,
             std::uint32_t events);
  void Rewatch(int fd, std::uint32_t events);
  void Unwatch(int fd);

  // Hands one batch of events to their watchers.  True if the set has to be
  // built anew (see Rebuild).
  bool Dispatch();
  // A descriptor that was closed without Unwatch while a duplicate lives on
  // reports for ever, and can't be removed: its number names something else.
  // The only cure is a new set.  fd() changes; false: errno, the old one stays.
  bool Rebuild();

 private:
  struct Entry {
    std::uint32_t generation = 0;
    std::uint32_t events = 0;
    std::shared_ptr<AnchorWatcher> watcher;
  };
  bool Add(int fd, const Entry& entry) RC_REQUIRES(latch_);

  base::Latch latch_;
  // Replaced with the latch, by the thread of Dispatch.
  base::UniqueFd set_;
  std::unordered_map<int, Entry> entries_ RC_GUARDED_BY(latch_);
  std::uint32_t generation_ RC_GUARDED_BY(latch_) = 0;
  int stale_ = 0;  // batches in a row that held an event of nobody
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_ANCHORS_H_
