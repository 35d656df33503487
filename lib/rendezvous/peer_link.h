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

// This process's half of the link with one peer process.  Owns the channel and
// the shared memory, and knows which stream has which number.  Side 0, the
// decider, owns the numbers.
//
// Threads: only within a turn of the conductor (Step).
class PeerLink : public ChannelOwner,
                 public std::enable_shared_from_this<PeerLink> {
 public:
  // Side 0: turns `channel` into a link.  Returns null and sets *why if it
  // fails.
  static std::shared_ptr<PeerLink> Make(Core* core, const Uuid& uuid,
                                        std::shared_ptr<Channel> channel,
                                        base::Reason* why);
  // Side 1: takes the LINK message that came on `channel`.  Returns null and
  // sets *why if it fails.
  static std::shared_ptr<PeerLink> Accept(Core* core, const Uuid& uuid,
                                          std::shared_ptr<Channel> channel,
                                          Packet& packet, base::Reason* why);
  PeerLink(Core* core, const Uuid& uuid, std::shared_ptr<Channel> channel,
           std::shared_ptr<lane::shm::Link> link);

  const Uuid& uuid() const { return uuid_; }
  // Returns the uid that the kernel reports.  The uuid is what the peer says of
  // itself.
  uid_t uid() const { return channel_->peer_uid(); }
  // Whether the peer has this process's uid.  A peer of another uid may claim
  // streams that it does not have.
  bool OwnUid() const {
    return uid() != base::kNoUid && uid() == base::OwnUid();
  }
  // Whether eventfds go over the link.  A process that has an eventfd can empty
  // it, fill it or make it blocking.  So it can hold up threads that sleep on
  // the eventfd or ring it.  A peer of our own uid could do as much by a
  // signal.  Any other peer gets no eventfd, and this process does not write to
  // the eventfds of that peer.
  bool SharesBells() const { return OwnUid(); }
  // Whether the two processes have met in the meeting directory.
  bool far() const { return channel_->far(); }
  bool decider() const { return link_->side() == 0; }
  bool dead() const { return dead_; }
  const std::shared_ptr<lane::shm::Link>& link() const { return link_; }
  int fd() const { return channel_->fd(); }
  std::span<const std::uint8_t> name() const { return channel_->name(); }

  // Side 1: names the session on whose channel the link came.  That session
  // fails with the link.
  void SetFounder(std::weak_ptr<Session> founder) { founder_ = founder; }
  // Side 0: gives the session a stream number and sends OPEN, at once, or when
  // the link is up and fewer other streams are under way.
  void Open(const std::shared_ptr<Session>& session);
  // Side 0: offers a stream number to a peer that the session has not met.  The
  // peer may take its time.  Returns false if the link is not up, or if the
  // peer is behind with its answers.
  bool Offer(const std::shared_ptr<Session>& session);
  // Side 1: HasOffer returns whether the peer has offered this tuple.
  // TakeOffer answers that offer.  TakeOffer returns false if there is none, or
  // if the offer is not of the session's peer.
  bool HasOffer(const Tuple& tuple, stream::Role role) const;
  bool TakeOffer(const std::shared_ptr<Session>& session);
  // Takes the packets that have come, without waiting for the conductor's turn.
  void Look() { channel_->Take(4); }
  void SendReady(int index, std::uint32_t epoch, Proof proof);
  // The session has its lane.  The number stays in use until CloseOurs.
  void Delivered(int index, std::shared_ptr<Seeker> seeker);
  // Whether a stream has had a lane of this link.
  bool delivered() const { return delivered_; }
  std::chrono::steady_clock::time_point begun() const { return begun_; }
  // Notes that this side has let go of the stream.  Sends CLOSED.
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
    bool ours = false;    // this side has yet to send CLOSED or REJECT
    bool theirs = false;  // the peer has yet to send CLOSED or REJECT
    bool answered = false;
    std::weak_ptr<Session> session;
    // Set from Delivered until the lane is returned or the link dies.  The
    // pointer may be the only owner of the memory that it shares.
    std::shared_ptr<Seeker> seeker;
    bool used() const { return ours || theirs; }
  };

  void WaitForAck();
  void OnNoAck();
  // Collects the bells that exist here and that the peer has not been given.
  int NewBells(int* fds, lane::BellMask* mask);
  bool TakeBells(lane::BellMask mask, Packet& packet, int first);
  // Returns the used slot that a message names.  Null: the peer broke the
  // protocol.
  Slot* Find(std::uint32_t index, std::uint32_t epoch);
  void FreeIfDone(int index);
  void TrimLater();
  void TrimNow();
  base::Reason OpenNow(const std::shared_ptr<Session>& session, bool offer);
  // Opens as many of `pending_` as may be under way.
  void OpenNext();
  void OnOpenTimer();
  // The stream is no longer one of `openings_`.
  void EndOpening(int index);
  // A peer's claim, and the inode number of its token.  0: there is no token.
  // `witness` is a descriptor of the packet's, or -1.
  struct Claimed {
    Claim claim;
    std::uint32_t token;
    int witness;
  };
  // Takes a claim with its packet, whose only descriptor may be a token.
  // Returns false if the peer broke the protocol.
  bool TakeClaim(const Claim& claim, Packet& packet, Claimed* claimed) const;
  Proof Prove(const Session& session, const Claimed& claimed, bool later) const;
  Proof ProveFar(const Session& session, const Claimed& claimed) const;
  // Sends OPEN or OPENED, with a token if the peer wants tokens.
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
  bool HandleMemory(Packet& packet);

  Core* const core_;
  const Uuid uuid_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<lane::shm::Link> link_;
  bool up_ = false;  // side 0: LINK_ACK has come; side 1: always
  bool dead_ = false;
  lane::BellMask announced_ = 0;  // bells that the peer has been given
  lane::BellMask known_ = 0;      // bells of the peer that this process has
  std::vector<Slot> slots_;
  // Side 0: numbers that no stream uses.  The last number freed is the first
  // used again, so the longest unused are in front.  The first `trimmed_`
  // numbers have no pages.
  struct Free {
    int index;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<Free> free_;
  std::size_t trimmed_ = 0;
  bool trims_ = false;        // a thread trims
  bool trims_later_ = false;  // trim_timer_ runs
  Timer trim_timer_;
  // Side 0: slots without an answer.
  int unanswered_ = 0;
  // Side 0: sessions whose OPEN is to come.
  std::deque<std::shared_ptr<Session>> pending_;
  struct Opening {
    int index;
    std::chrono::steady_clock::time_point until;
  };
  // Side 0: streams that have had their OPEN lately, and no lane yet.
  std::deque<Opening> openings_;
  Timer open_timer_;
  bool opens_later_ = false;  // open_timer_ runs
  std::weak_ptr<Session> founder_;
  bool delivered_ = false;
  const std::chrono::steady_clock::time_point begun_ =
      std::chrono::steady_clock::now();
  const PeerProcess process_;
  bool gives_tokens_ = false;  // the peer wants tokens
  // Side 1: an offer of a stream that no session here looks for yet.  Its slot
  // is used, and not answered.
  struct Held {
    Tuple tuple;
    stream::Role role;  // this end's
    int index;
    stream::Nonce peers;
    Claimed claimed;
  };
  std::vector<Held> held_;
  Timer timer_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_PEER_LINK_H_
