#ifndef RCSOCK_LIB_RENDEZVOUS_PEER_LINK_H_
#define RCSOCK_LIB_RENDEZVOUS_PEER_LINK_H_

#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/identity.h"
#include "lib/lane/shm/link.h"
#include "lib/rendezvous/channel.h"
#include "lib/rendezvous/peer_process.h"
#include "lib/rendezvous/timer.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {

class Core;
class Session;

// This process's half of the link with one peer process: the channel, the
// shared memory, and who uses which stream number.  Side 0, the decider, owns
// the numbers.
//
// Threads: within turns of the conductor (Step).
class PeerLink : public ChannelOwner,
                 public std::enable_shared_from_this<PeerLink> {
 public:
  // Side 0: turns `channel` into a link.  Null: *why.
  static std::shared_ptr<PeerLink> Make(Core* core, const Uuid& uuid,
                                        std::shared_ptr<Channel> channel,
                                        base::Reason* why);
  // Side 1: takes the LINK message that came on `channel`.  Null: *why.
  static std::shared_ptr<PeerLink> Accept(Core* core, const Uuid& uuid,
                                          std::shared_ptr<Channel> channel,
                                          Packet& packet, base::Reason* why);
  PeerLink(Core* core, const Uuid& uuid, std::shared_ptr<Channel> channel,
           std::shared_ptr<lane::shm::Link> link);

  const Uuid& uuid() const { return uuid_; }
  // The uuid is what the peer says, this is what the kernel says.
  uid_t uid() const { return channel_->peer_uid(); }
  // Only such a peer is as good as this process: any other may say that it has
  // streams that it has not.
  bool OwnUid() const {
    return uid() != base::kNoUid && uid() == base::OwnUid();
  }
  // Whether eventfds go over the link.  Everybody who has one can empty it, and
  // fill it and make it blocking, and so hold up all who sleep by it or ring
  // it.  Who could not do as much by a signal gets none, and his are not
  // written to.
  bool SharesBells() const { return OwnUid(); }
  bool decider() const { return link_->side() == 0; }
  bool dead() const { return dead_; }
  const std::shared_ptr<lane::shm::Link>& link() const { return link_; }
  int fd() const { return channel_->fd(); }
  std::span<const std::uint8_t> name() const { return channel_->name(); }

  // Side 1: the session on whose channel the link came; it fails with the link.
  void SetFounder(std::weak_ptr<Session> founder) { founder_ = founder; }
  // Side 0: gives the session a stream number and tells the peer, now or once
  // the link is up.
  void Open(const std::shared_ptr<Session>& session);
  // Side 0, for a session that has not met its peer: the same, if the link is
  // up, and the peer may take its time.  False: it can't be, or the peer is
  // behind with its answers.
  bool Offer(const std::shared_ptr<Session>& session);
  // Side 1: whether the peer has offered that, and what takes it.  False: it
  // was no peer of the session's.
  bool HasOffer(const Tuple& tuple, stream::Role role) const;
  bool TakeOffer(const std::shared_ptr<Session>& session);
  // Takes what has come, without waiting for the conductor's turn.
  void Look() { channel_->Take(4); }
  void SendReady(int index, std::uint32_t epoch, Proof proof);
  // The session has its lane; the number stays in use until CloseOurs.
  void Delivered(int index, std::shared_ptr<Seeker> seeker);
  // A stream has had a lane of it.
  bool delivered() const { return delivered_; }
  std::chrono::steady_clock::time_point begun() const { return begun_; }
  // This side has let go of the stream.
  void CloseOurs(int index, std::uint32_t epoch, base::Reason reason);
  void AnnounceBell(int k);
  void Die(base::Reason reason);

  void OnPacket(Packet& packet) override;
  void OnChannelEnd(base::Reason reason) override;
  // The memory of these numbers has been given back.
  void Trimmed(const std::vector<int>& numbers);

 private:
  struct Slot {
    std::uint32_t epoch = 0;
    bool ours = false;    // this side has not sent CLOSED (or REJECT)
    bool theirs = false;  // the peer has not
    bool answered = false;
    std::weak_ptr<Session> session;
    // From Delivered until the lane is returned or the link dies: nobody else
    // need hold what the pointer shares.
    std::shared_ptr<Seeker> seeker;
    bool used() const { return ours || theirs; }
  };

  void WaitForAck();
  void OnNoAck();
  // Bells that exist here and that the peer has not been given.
  int NewBells(int* fds, lane::BellMask* mask);
  bool TakeBells(lane::BellMask mask, Packet& packet, int first);
  // The used slot that a message speaks of; null: the peer broke the protocol.
  Slot* Find(std::uint32_t index, std::uint32_t epoch);
  void FreeIfDone(int index);
  void TrimLater();
  void TrimNow();
  base::Reason OpenNow(const std::shared_ptr<Session>& session, bool offer);
  // What a peer has claimed: its word, and the inode number of its token (0:
  // none).
  struct Claimed {
    Claim claim;
    std::uint32_t token;
  };
  // As it came with a packet, whose only descriptor may be a token.  False: the
  // peer broke the protocol.
  bool TakeClaim(const Claim& claim, Packet& packet, Claimed* claimed) const;
  Proof Prove(const Session& session, const Claimed& claimed, bool later) const;
  // Sends OPEN or OPENED, with a token if the peer wants one.
  template <typename Message>
  void SendClaim(const Session& session, const Message& message);
  void Answer(const std::shared_ptr<Session>& session, int index,
              std::uint32_t epoch, const stream::Nonce& peers, Proof proof);
  void Reject(std::uint32_t index, std::uint32_t epoch,
              base::Reason why = base::Reason::kPeerRefused);

  // Each returns false if the peer broke the protocol.
  bool Handle(Packet& packet);
  bool HandleAck(Packet& packet);
  bool HandleBell(Packet& packet);
  bool HandleSegment(Packet& packet);
  bool HandleOpen(Packet& packet);
  bool HandleOpened(Packet& packet);
  bool HandleReject(Packet& packet);
  bool HandleReady(Packet& packet);
  bool HandleClosed(Packet& packet);

  Core* const core_;
  const Uuid uuid_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<lane::shm::Link> link_;
  bool up_ = false;  // side 0: LINK_ACK has come; side 1: always
  bool dead_ = false;
  lane::BellMask announced_ = 0;  // bells the peer has been given
  lane::BellMask known_ = 0;      // bells of the peer that we have
  std::vector<Slot> slots_;
  // Side 0: numbers that nobody uses.  The last one to be freed is the first to
  // be used again, so the oldest are in front; of those the first `trimmed_`
  // have no pages.
  struct Free {
    int index;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<Free> free_;
  std::size_t trimmed_ = 0;
  bool trims_ = false;        // a thread does
  bool trims_later_ = false;  // the timer runs
  Timer trim_timer_;
  int unanswered_ = 0;                             // side 0: slots
  std::vector<std::shared_ptr<Session>> pending_;  // side 0: until LINK_ACK
  std::weak_ptr<Session> founder_;
  bool delivered_ = false;
  const std::chrono::steady_clock::time_point begun_ =
      std::chrono::steady_clock::now();
  const PeerProcess process_;
  bool gives_tokens_ = false;  // the peer wants them
  // Side 1: offers of streams that nobody looks for here, yet.  Their slots are
  // used, and not answered.
  struct Held {
    Tuple tuple;
    stream::Role role;  // ours
    int index;
    stream::Nonce peers;
    Claimed claimed;
  };
  std::vector<Held> held_;
  Timer timer_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_PEER_LINK_H_
