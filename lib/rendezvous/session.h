#ifndef RCSOCK_LIB_RENDEZVOUS_SESSION_H_
#define RCSOCK_LIB_RENDEZVOUS_SESSION_H_

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "lib/rendezvous/address.h"
#include "lib/rendezvous/channel.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/timer.h"

namespace rcsock::rendezvous {

class Core;
class PeerLink;
class RdmaMeeting;

// One attempt of one stream to find its peer and share a lane with it.
//
// Threads: within turns of the conductor (Step), but for Cancel.
class Session : public ChannelOwner,
                public std::enable_shared_from_this<Session> {
 public:
  Session(Core* core, std::shared_ptr<Seeker> seeker);
  ~Session() override;

  void Begin();
  // The same in a thread that has taken the conductor's place; false: Begin has
  // to go on.
  bool BeginOverLink();
  // Any thread: nothing of the seeker is called any more.
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  // Ends the attempt, with a word to the seeker unless it is cancelled.
  void Fail(base::Reason reason, bool final);
  void Adopted();
  // Somebody does not want to wait until the conductor reads the answer.
  void Look();
  bool queued() const { return state_ == State::kQueued; }
  // A place to wait at its name is free.
  void FromQueue();

  // --- For the link
  // True if this process has introduced itself to that link's peer for this
  // stream, and waits for it to decide; or, if it is of our own uid, may still
  // do so.
  bool Expects(const PeerLink& link) const;
  bool PrepareOpen(OpenMsg* message);
  void OpenSent(std::shared_ptr<PeerLink> link, int index, std::uint32_t epoch);
  void Opened(std::shared_ptr<PeerLink> link, int index, std::uint32_t epoch,
              const stream::Nonce& peers, Proof proof);
  // The peer of that link, which was to open this stream, has not its other
  // end.
  void ClaimedInVain(const PeerLink& link);
  // What answers is not the other end of this connection.
  void NotProven(PeerLink* link, int index, std::uint32_t epoch);
  // A number of that link has been offered to its peer.
  void Offered(std::shared_ptr<PeerLink> link, int index, std::uint32_t epoch);
  void Rejected(const PeerLink* link, int index, base::Reason why);
  void LinkEnded(const PeerLink* link, base::Reason reason);
  // `theirs`: what the peer knows of this end.
  void PeerReady(Proof theirs);
  // What this end can show of its connection.
  Claim OwnClaim() const;
  // Whether the claim can be that of the other end.  `later`: it was made after
  // this search had begun.
  bool CanBePeer(const Claim& claim, bool later) const;
  // The inode number of the other end's socket; 0: unknown.
  std::uint32_t OtherEnd() const;
  BorrowedNumber fd() const { return BorrowedNumber(seeker_.get()); }

  // --- For a meeting over rdma_cm
  const std::shared_ptr<Seeker>& seeker() const { return seeker_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  bool NewNonce();
  // The stream is about to get its lane.
  void Delivered() { Finish(); }
  // Null: it meets on this host.
  RdmaMeeting* rdma() const { return rdma_.get(); }

  const stream::Nonce& nonce() const { return mine_; }
  const Tuple& tuple() const { return tuple_; }
  stream::Role role() const { return role_; }
  int listener_fd() const { return listener_fd_.get(); }
  int channel_fd() const { return channel_ ? channel_->fd() : -1; }

  void OnPacket(Packet& packet) override;
  void OnChannelEnd(base::Reason reason) override;

 private:
  // In order: up to kHello it has met nobody, up to kWaitLink it may offer.
  enum class State {
    kStart,
    kOffered,   // to those processes that have met for such streams before
    kQueued,    // too many are waited for
    kBinder,    // listening at the name
    kHello,     // connected; HELLO sent
    kWaitLink,  // decider: the link is being made
    kWaitOpen,  // the other decides
    kOpenSent,  // decider
    kAdopting,  // a number is agreed; waiting for both streams
    kDone,
  };

  // Both ends; kNone, or why there can be no lane between them.
  base::Reason ReadNames(sockaddr_storage* local, Address* local_address);
  // Takes its place in the table; false: it has failed.
  bool List(const Address& local_address);
  // True: the peer's own offer was there, or one is made.
  bool TryLinks();
  // The connecting end, where the accepting one has just come to look in this
  // very process.
  void OfferHere();
  bool Decides(const Uuid& peer) const;
  // All but the one that has been taken up.
  void TakeBackOffers(int but = -1, const PeerLink* link = nullptr);
  void OfferEnded(bool known, base::Reason reason);
  void TryName();
  void RetrySoon(base::Reason if_exhausted);
  void Queue();
  std::uint16_t ServicePort() const {
    return role_ == stream::Role::kConnector ? peer_port_ : local_port_;
  }
  void Bound(base::PeerSocket fd);
  void WaitAccept();
  void OnAccept();
  bool Connected(base::PeerSocket fd);
  // Says HELLO to whom it may talk to.
  bool Talk(base::PeerSocket fd);
  void SendHello();
  void OnHello(Packet& packet);
  void Decide();
  void OnLinkMessage(Packet& packet);
  void StartTimer(std::chrono::milliseconds limit);
  void OnTimer();
  void CloseListener();
  void CloseChannel();
  void Deliver();
  void Finish();

  Core* const core_;
  const std::shared_ptr<Seeker> seeker_;
  std::atomic<bool> cancelled_{false};
  const stream::Role role_;
  State state_ = State::kStart;
  Tuple tuple_{};
  Address peer_address_{};
  std::uint16_t peer_port_ = 0;
  std::uint16_t local_port_ = 0;
  std::uint32_t scope_ = 0;        // of a link-local address
  Traffic before_{};               // when the search began
  bool listed_ = false;            // in the core's table of tuples
  bool remembered_plain_ = false;  // nobody was there a moment ago: do not wait
  int tries_ = 0;
  // How long it has to find its peer; none until it has queued.
  std::optional<std::chrono::steady_clock::time_point> patience_;

  base::PeerSocket listener_fd_;
  boost::asio::posix::stream_descriptor listener_;
  Timer timer_;
  std::shared_ptr<Channel> channel_;
  bool from_binder_ = false;  // the channel was accepted at our name
  bool stranger_ = false;     // another user has knocked there

  struct Offer {
    std::shared_ptr<PeerLink> link;
    int index;
    std::uint32_t epoch;
  };
  std::vector<Offer> offers_;

  Uuid peer_{};
  uid_t peer_uid_ = 0;  // once connected
  stream::Nonce mine_{};
  stream::Nonce peers_{};
  std::shared_ptr<PeerLink> link_;
  int index_ = -1;
  std::uint32_t epoch_ = 0;
  bool adopted_ = false;
  bool peer_ready_ = false;
  Proof proof_ = Proof::kNone;        // of the peer
  Proof peers_proof_ = Proof::kNone;  // that the peer has of this end
  std::unique_ptr<lane::Lane> lane_;

  std::shared_ptr<RdmaMeeting> rdma_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SESSION_H_
