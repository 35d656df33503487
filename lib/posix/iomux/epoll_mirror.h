#ifndef RCSOCK_LIB_POSIX_IOMUX_EPOLL_MIRROR_H_
#define RCSOCK_LIB_POSIX_IOMUX_EPOLL_MIRROR_H_

#include <atomic>

#include "lib/base/latch.h"
#include "lib/posix/socket/interest_latch.h"

namespace rcsock::posix {

class EpollSet;

// An eventfd in the kernel's part of an epoll set.  The eventfd is readable
// while the set's streams on lanes have events.  So the kernel knows whether
// the set is readable, for all that wait for the set: another epoll set, poll,
// select, an io_uring, or another process.  The conductor watches the bell of
// the set, looks at the set, and raises the mirror.  Each wait of this process
// looks before it asks the kernel (UpdateMirrors), and raises or lowers the
// mirror.
struct Mirror {
  // A thread may wait for the set.  Written with interest_latch.
  std::atomic<bool> wanted{false};
  // -1: there is none.  Written with the wait latch, or before the conductor
  // knows the mirror.
  std::atomic<int> fd{-1};
  // The eventfd's counter is not 0.  Written with `latch`, which comes last in
  // the order of latches.
  std::atomic<bool> raised{false};
  base::Latch latch;
  // The conductor that watches the bell and the sources.
  const void* watched_by RC_GUARDED_BY(interest_latch) = nullptr;
  // In the list of all sets that have ever had a mirror.
  bool listed RC_GUARDED_BY(interest_latch) = false;
  // Written before the set is in the list.
  EpollSet* next = nullptr;
  // The bell has rung, and the conductor has found the set busy.  Belongs to
  // the conductor's turn.
  bool late = false;

  // Makes the set readable.  If the set is readable already, the call makes a
  // new edge.
  void Raise() RC_EXCLUDES(latch);
  void Lower() RC_EXCLUDES(latch);
  void Close() RC_EXCLUDES(latch);
};

// All sets that have ever had a mirror.
extern std::atomic<EpollSet*> mirrored_sets;

// Called before a call asks the kernel about a descriptor that may be, or hold,
// an epoll set.  The caller holds no latch.
void UpdateMirrorsNow();
inline void UpdateMirrors() {
  if (mirrored_sets.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    UpdateMirrorsNow();
}

// In a child of fork.  The bells are the parent's.
void MirrorsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_EPOLL_MIRROR_H_
