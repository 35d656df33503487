#ifndef RCSOCK_LIB_LANE_SHM_LINK_H_
#define RCSOCK_LIB_LANE_SHM_LINK_H_

#include <cstdint>
#include <memory>
#include <span>

#include "lib/base/foreign_fd.h"
#include "lib/base/reason.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/lane.h"
#include "lib/lane/poller.h"
#include "lib/lane/shm/bells.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::lane::shm {

class LinkState;

// The memory shared with one peer process, seen from one side. Side 0 has made
// the link. The memory has
// - the link page: per side and bell a hierarchical ready bitmap, which the
//   other side sets;
// - segments of 64 streams each, made by side 0.
//
// The peer may write anything anywhere in it at any time.
//
// Threads: any, but one at a time for Drain of one bell. Lanes keep the memory
// alive after the Link is gone.
class Link {
 public:
  // Makes side 0. Null: errno.
  static std::unique_ptr<Link> Create();
  // Makes side 1; checks seals and size.
  static std::unique_ptr<Link> Map(base::UniqueFd page);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int side() const;
  int page_fd() const;
  // Side 0: makes segment number `segments()`, and returns its memfd. The
  // caller owns the memfd, sends it, then closes it.
  base::UniqueFd AddSegment();
  // Side 1: checks size and seals.
  bool MapSegment(base::UniqueFd fd);
  // Gives the pages of a stream's rings back to the kernel. Requires that
  // neither side has a lane there. A peer can make the call wait for as long as
  // it likes. So the calling thread must be one that no other thread waits for.
  void Trim(int index);
  int segments() const;

  // The peer's bells: its page, and eventfds as they become known. Only the
  // first page, and the first eventfd of each bell, counts. `most_ring` is what
  // this side's own page says. SetPeerBellPage comes before the first OpenLane,
  // since both ends of a lane must agree on the size.
  bool SetPeerBellPage(base::UniqueFd fd, std::uint32_t most_ring = kRingBytes);
  void SetPeerBell(int k, base::UniqueFd fd);
  // If the peer's eventfds are not known, `rung` rings the peer on the link's
  // socket. `memory` goes with the descriptor of an allocation, and ends with
  // the allocation's number. Both messages are of static storage. On a socket
  // nothing that the peer does can make the sender wait. The caller owns the
  // socket, and sets -1 before it closes the socket.
  void SetSocket(int fd, std::span<const std::byte> rung,
                 std::span<const std::byte> memory);
  // For a child of fork, where the socket is the parent's.
  void ForgetSocket();
  // A bit for each bell of this side that the peer has rung by a message since
  // the last call. Called after each message that has come on the socket.
  BellMask TakeRung();

  // Opens this side's end of stream `index`. Null: out of range, in use, or out
  // of memory. Side 0 must have called Scrub(index) before the peer opens it.
  std::unique_ptr<Lane> OpenLane(int index);
  // Side 0: makes the stream's slots read as empty again for reuse. Requires
  // that neither end has the stream open.
  void Scrub(int index);
  // From now on this side passes memory of devices to the peer, and opens what
  // the peer passes.
  void PassMemory();
  bool PassesMemory() const;
  // Takes the descriptor of an allocation that has come on the socket, or none
  // if there was no room for it. Returns false if too many files wait to be
  // closed: then the peer is to be left.
  bool PutMemory(std::uint64_t id, base::ForeignFd fd);
  // What completions of that stream carry (Completion::cookie); null: it has
  // none.
  void SetCookie(int index, void* cookie);
  // Lines of this process, `which` of two, that the caller of Drain will touch
  // soon, besides the line behind the cookie's. Drain prefetches them, and
  // never reads them.
  void SetBeside(int index, int which, const void* line);

  // Reports and clears what the peer has marked for bell k. What exceeds
  // `capacity` stays marked for the next call.
  int Drain(int bell, Completion* out, int capacity);
  // The peer process is gone or broke the rules. Every lane of the link reports
  // `why` from State(), and sleepers wake. Drain yields each open lane once,
  // with kCompletionError. The caller kicks its own bells.
  void Kill(base::Reason why);
  bool dead() const;
  // For a child of fork that uses no lane of the link any more: gives up what
  // is the parent's.
  void Abandon();

 private:
  explicit Link(std::shared_ptr<LinkState> state);

  const std::shared_ptr<LinkState> state_;
};

}  // namespace rcsock::lane::shm

#include "lib/lane/shm/shm_poller.h"  // IWYU pragma: export

#endif  // RCSOCK_LIB_LANE_SHM_LINK_H_
