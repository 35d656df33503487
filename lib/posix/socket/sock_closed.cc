#include "lib/posix/socket/sock_closed.h"

#include <atomic>

#include "lib/base/clock.h"
#include "lib/base/latch.h"
#include "lib/base/sleep.h"
#include "lib/posix/socket/address_reuse.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

namespace {

// Guards the list and all its places.  No thread takes another latch while it
// holds this one.
constinit base::Latch closed_latch;
constinit Sock* closed_head RC_GUARDED_BY(closed_latch) = nullptr;
// How many threads may have closed streams out of the list.  Such a thread
// walks the list, or takes a stream from the list to close its number.
constinit std::atomic<int> unlisting{0};
// How many threads have begun to walk the list.
constinit std::atomic<std::uint32_t> walks{0};
// By then a parent that had closed streams at the fork has ended them.
constinit std::atomic<std::uint64_t> parents_until_ns{0};
// Until then an exit or exec waits for the ends of its peers: one time for all.
constinit std::atomic<std::uint64_t> exits_until_ns{0};

}  // namespace

void ClosedStreams::ForkLock() { closed_latch.LockForFork(); }

void ClosedStreams::ForkUnlock(bool child) {
  closed_latch.AssertUnshared();
  if (child) {
    if (closed_head != nullptr || unlisting.load() != 0) {
      parents_until_ns.store(base::NowNs() + kMostToEndNs);
    }
    closed_head = nullptr;
    unlisting.store(0);
  }
  closed_latch.UnlockAfterFork(child);
}

void ClosedStreams::Link(Sock* sock, Sock** head) {
  Place& place = sock->ending().place_;
  RC_DCHECK(place.link == nullptr);
  place.next = *head;
  if (place.next != nullptr) {
    place.next->ending().place_.link = &place.next;
  }
  place.link = head;
  *head = sock;
}

void ClosedStreams::Unlink(Sock* sock) {
  Place& place = sock->ending().place_;
  if (place.link == nullptr) return;
  *place.link = place.next;
  if (place.next != nullptr) place.next->ending().place_.link = place.link;
  place.link = nullptr;
}

void ClosedStreams::Add(Sock* sock) {
  const base::LatchGuard hold(closed_latch);
  Link(sock, &closed_head);
}

void ClosedStreams::Remove(Sock* sock) {
  const base::LatchGuard hold(closed_latch);
  Unlink(sock);
}

ClosedStreams::Unlisting::Unlisting() { unlisting.fetch_add(1); }
ClosedStreams::Unlisting::~Unlisting() { unlisting.fetch_sub(1); }

template <class Each>
void ClosedStreams::ForEach(Each&& each) {
  Critical critical;
  Sock* done = nullptr;
  const Unlisting counted;
  walks.fetch_add(1);
  for (;;) {
    Sock* sock;
    {
      const base::LatchGuard hold(closed_latch);
      sock = closed_head;
      if (sock == nullptr) {
        // If an exec fails, the streams are still to be flushed at exit.
        closed_head = done;
        if (done != nullptr) done->ending().place_.link = &closed_head;
        return;
      }
      Unlink(sock);
      Link(sock, &done);
      sock->Ref();
    }
    each(sock);
    sock->Unref();
  }
}

bool ClosedStreams::EndsOnPort(std::uint16_t port) {
  if (InBorrowedMemory()) return false;
  bool found = false;
  ForEach([&](Sock* sock) { found = found || sock->ending().EndsOn(port); });
  return found || unlisting.load() != 0 ||
         base::NowNs() < parents_until_ns.load();
}

void ClosedStreams::BeginToEnd() {
  exits_until_ns.store(base::NowNs() + kMostToEndNs);
}

bool ClosedStreams::MayAwaitEnds(std::uint64_t deadline_ns) {
  const std::uint64_t now = base::NowNs();
  return now < deadline_ns && now < exits_until_ns.load();
}

void ClosedStreams::Flush(std::uint64_t deadline_ns, bool last) {
  for (;;) {
    // A thread that walks the list (bind, or another exec) has streams that
    // this thread does not find.  Either that walk is counted in `unlisting`
    // here, or it had put all back before, or it begins later, which `walks`
    // tells.
    const std::uint32_t before = walks.load();
    const bool alone = unlisting.load() == 0;
    ForEach([&](Sock* sock) { sock->across_exec().Flush(deadline_ns, last); });
    if (alone && walks.load() == before + 1) return;
    if (base::NowNs() >= deadline_ns) return;
    base::SleepThrough(100'000);
  }
}

void ClosedStreams::TakeResetsBack() {
  ForEach([](Sock* sock) { sock->across_exec().TakeResetBack(); });
}

}  // namespace rcsock::posix
