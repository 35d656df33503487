#ifndef RCSOCK_LIB_LANE_SHM_LINK_H_
#define RCSOCK_LIB_LANE_SHM_LINK_H_

#include <cstdint>
#include <memory>
#include <span>

#include "lib/base/reason.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/lane.h"
#include "lib/lane/poller.h"
#include "lib/lane/shm/bells.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::lane::shm {

class LinkState;

// The memory shared with one peer process, seen from one side (0: the side that
// made the link; 1: the other).
//  - the link page: per side and bell a hierarchical ready bitmap, set by the
//    other side;
//  - segments of 64 streams each, made by side 0.
// Everything in it may be scribbled on by the peer at any time.
//
// Any thread may call anything, but one at a time for Drain of one bell.  Lanes
// keep the memory alive after the Link is gone.
class Link {
 public:
  // Side 0.  Null: errno.
  static std::unique_ptr<Link> Create();
  // Side 1; checks seals and size.
  static std::unique_ptr<Link> Map(base::UniqueFd page);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int side() const;
  int page_fd() const;
  // Side 0: makes segment number `segments()`, returns its memfd (owned by the
  // caller: send it, then close it).
  base::UniqueFd AddSegment();
  // Side 1: checks size and seals.
  bool MapSegment(base::UniqueFd fd);
  // Gives the pages of a stream's rings back to the kernel; neither side may
  // have a lane there.  A peer can make it wait for as long as it likes: it is
  // for a thread that nobody waits for.
  void Trim(int index);
  int segments() const;

  // The peer's bells: its page, and eventfds as they become known.  Only the
  // first page, and the first eventfd of each bell, counts.  `most_ring`: what
  // this side's own page says; before the first OpenLane, for both ends of a
  // lane must come to the same size.
  bool SetPeerBellPage(base::UniqueFd fd, std::uint32_t most_ring = kRingBytes);
  void SetPeerBell(int k, base::UniqueFd fd);
  // A peer whose eventfds are not known is rung by `message` (of static
  // storage) on the link's socket, where nothing that the peer does can make
  // the sender wait.  The socket stays the caller's, who says -1 before it is
  // closed.
  void SetSocket(int fd, std::span<const std::byte> message);
  // In a child of fork the socket is the parent's.
  void ForgetSocket();
  // A bit for each of our bells that the peer has rung so since the last call:
  // to be asked for after each message that has come on the socket.
  BellMask TakeRung();

  // Opens this side's end of stream `index`; null if out of range or in use.
  // Side 0 must have called Scrub(index) before the peer opens it.
  std::unique_ptr<Lane> OpenLane(int index);
  // Side 0: makes the stream's slots read as empty again for reuse.  Only while
  // neither end has it open.
  void Scrub(int index);
  // What completions of that stream carry (Completion::cookie); null: none.
  void SetCookie(int index, void* cookie);
  // Lines of this process's own (`which` of two) that whoever has called
  // Drain will touch soon, besides the one behind that at the cookie: it
  // prefetches them, and never reads them.
  void SetBeside(int index, int which, const void* line);

  // Visits, and clears, what the peer marked for bell k.  What does not fit
  // stays marked for the next call.
  int Drain(int bell, Completion* out, int capacity);
  // The peer process is gone or broke the rules: every lane of the link reports
  // `why` from State(); sleepers wake, and Drain yields each open lane once,
  // with kCompletionError.  The caller kicks its own bells.
  void Kill(base::Reason why);
  bool dead() const;
  // In a child of fork, where no lane of it is used any more: lets go of what
  // is the parent's.
  void Abandon();

 private:
  explicit Link(std::shared_ptr<LinkState> state);

  const std::shared_ptr<LinkState> state_;
};

}  // namespace rcsock::lane::shm

#include "lib/lane/shm/shm_poller.h"  // IWYU pragma: export

#endif  // RCSOCK_LIB_LANE_SHM_LINK_H_
