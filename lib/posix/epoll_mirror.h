#ifndef RCSOCK_LIB_POSIX_EPOLL_MIRROR_H_
#define RCSOCK_LIB_POSIX_EPOLL_MIRROR_H_

#include <atomic>

#include "lib/base/latch.h"
#include "lib/posix/interest_latch.h"

namespace rcsock::posix {

class EpollSet;

// An eventfd in the kernel's part of an epoll set.  It is readable while the
// streams that the set has on lanes have events.  So the kernel knows whether
// the set is readable, for whoever waits for the set: another epoll set, poll,
// select, an io_uring, or another process.
//
// The conductor watches the bell of such a set, looks at the set, and raises
// the mirror.  Each wait of this process looks before it asks the kernel
// (UpdateMirrors), and raises or lowers the mirror.
struct Mirror {
  // Somebody may wait for the set.  Written with the interest latch.
  std::atomic<bool> wanted{false};
  // -1: there is none.  Written with the wait latch or before the conductor
  // knows of it.
  std::atomic<int> fd{-1};
  // The eventfd's counter is not 0.  Written with `latch`, which is taken last.
  std::atomic<bool> raised{false};
  base::Latch latch;
  // Who watches the bell, and the sources.
  const void* watched_by RC_GUARDED_BY(interest_latch) = nullptr;
  // In the list of all sets that have ever had one.
  bool listed RC_GUARDED_BY(interest_latch) = false;
  // Written before the set is in the list.
  EpollSet* next = nullptr;
  // Its bell has rung, and the conductor has found the set busy; in its step.
  bool late = false;

  // Makes the set readable, and an edge where it is.
  void Raise() RC_EXCLUDES(latch);
  void Lower() RC_EXCLUDES(latch);
  void Close() RC_EXCLUDES(latch);
};

// All sets that have ever had a mirror.
extern std::atomic<EpollSet*> mirrored_sets;

// A call is about to ask the kernel whether something is readable that may be,
// or hold, an epoll set.  No latch held.
void UpdateMirrorsNow();
inline void UpdateMirrors() {
  if (mirrored_sets.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    UpdateMirrorsNow();
}

// In a child of fork; the bells are the parent's.
void MirrorsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_EPOLL_MIRROR_H_
