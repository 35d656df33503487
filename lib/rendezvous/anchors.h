#ifndef RCSOCK_LIB_RENDEZVOUS_ANCHORS_H_
#define RCSOCK_LIB_RENDEZVOUS_ANCHORS_H_

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

// The internal epoll set of all watched anchors, each under the application's
// own descriptor number.  All system calls on it are raw: the preload would
// take them for the application's.
//
// Threads: any for Watch, Rewatch and Unwatch; one for Dispatch and Rebuild.
class Anchors {
 public:
  bool Init();  // false: sets errno
  // Forgets all anchors.  Watch fails from now on.
  void Close();
  // Called in a child of fork.  Closes the anchors that have numbers of
  // rcsock's own, of connections that the application had closed.  Otherwise
  // the child would keep these connections open after the parent's end, and the
  // peer would not hear of that end.
  void CloseInherited();
  int fd() const { return set_.get(); }
  // False may be out of date at once.
  bool Any();

  bool Watch(int fd, std::shared_ptr<AnchorWatcher> watcher,
             std::uint32_t events);
  void Rewatch(int fd, std::uint32_t events);
  void Unwatch(int fd);

  // Hands one batch of events to their watchers.  Returns true if Rebuild is
  // needed.
  bool Dispatch();
  // Makes a new set.  A descriptor may be closed without Unwatch while a
  // duplicate lives on.  Its registration then reports for ever, and cannot be
  // removed: its number names another file.  fd() changes.  If this fails, it
  // returns false and sets errno, and the old set stays.
  bool Rebuild();

 private:
  struct Entry {
    std::uint32_t generation = 0;
    std::uint32_t events = 0;
    std::shared_ptr<AnchorWatcher> watcher;
  };
  bool Add(int fd, const Entry& entry) RC_REQUIRES(latch_);

  base::Latch latch_;
  // Replaced under the latch, by the thread that calls Dispatch.
  base::UniqueFd set_;
  std::unordered_map<int, Entry> entries_ RC_GUARDED_BY(latch_);
  std::uint32_t generation_ RC_GUARDED_BY(latch_) = 0;
  int stale_ = 0;  // batches in a row with an event of no entry
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_ANCHORS_H_
