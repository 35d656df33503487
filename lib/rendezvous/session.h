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

// One attempt of one stream to find its peer and to share a lane with it.
//
// Threads: only within a turn of the conductor (Step), except for Cancel.
class Session : public ChannelOwner,
                public std::enable_shared_from_this<Session> {
 public:
  Session(Core* core, std::shared_ptr<Seeker> seeker);
  ~Session() override;

  void Begin();
  // Begins in a thread that has taken the conductor's place.  Returns false if
  // Begin has to go on.
  bool BeginOverLink();
  // Called from any thread.  The session calls nothing of the seeker any more.
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  // Ends the attempt.  Tells the seeker unless it is cancelled.
  void Fail(base::Reason reason, bool final);
  void Adopted();
  // Takes the peer's answer now: a thread does not want to wait until the
  // conductor reads it.
  void Look();
  bool queued() const { return state_ == State::kQueued; }
  // The queue gives this session a place to wait at its name.
  void FromQueue();

  // --- For the link
  // Whether this session accepts a stream that this link opens.  True if the
  // session has said HELLO to that link's peer, which is to decide.  True also
  // if the peer has our own uid, and the session may still say HELLO to it.
  bool Expects(const PeerLink& link) const;
  bool PrepareOpen(OpenMsg* message);
  void OpenSent(std::shared_ptr<PeerLink> link, int index, std::uint32_t epoch);
  void Opened(std::shared_ptr<PeerLink> link, int index, std::uint32_t epoch,
              const stream::Nonce& peers, Proof proof);
  // The peer of that link should have opened this stream, and does not have its
  // other end.
  void ClaimedInVain(const PeerLink& link);
  // The end that has answered is not the other end of this connection.
  void NotProven(PeerLink* link, int index, std::uint32_t epoch);
  // Notes that this end has offered its peer a number of that link.
  void Offered(std::shared_ptr<PeerLink> link, int index, std::uint32_t epoch);
  void Rejected(const PeerLink* link, int index, base::Reason why);
  void LinkEnded(const PeerLink* link, base::Reason reason);
  // `theirs`: the peer's proof of this end.
  void PeerReady(Proof theirs);
  // Returns what this end can show of its connection.
  Claim OwnClaim() const;
  // Whether the claim can be that of the other end.  `later`: the peer made the
  // claim after this search had begun.
  bool CanBePeer(const Claim& claim, bool later) const;
  // Returns the inode number of the other end's socket, or 0 if the number is
  // unknown.
  std::uint32_t OtherEnd() const;
  // As OtherEnd, for an end in another network namespace.  `witness` comes from
  // the peer, and may be anything.
  std::uint32_t FarEnd(int witness) const;
  // Takes the peer's HELLO, if it has come.
  void TakeHello();
  BorrowedNumber fd() const { return BorrowedNumber(seeker_.get()); }

  // --- For a meeting over rdma_cm
  const std::shared_ptr<Seeker>& seeker() const { return seeker_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  bool NewNonce();
  // The stream is about to get its lane.
  void Delivered() { Finish(); }
  // Null: the session meets its peer on this host.
  RdmaMeeting* rdma() const { return rdma_.get(); }

  const stream::Nonce& nonce() const { return mine_; }
  // Returns the tuple under which the two ends find each other.
  const Tuple& tuple() const { return tuple_; }
  // Returns the connection's ends, as this end sees them.
  const Tuple& ends() const { return ends_; }
  stream::Role role() const { return role_; }
  int listener_fd() const { return listener_fd_.get(); }
  int channel_fd() const { return channel_ ? channel_->fd() : -1; }

  void OnPacket(Packet& packet) override;
  void OnChannelEnd(base::Reason reason) override;

 private:
  // In order.  Up to kHello the session has met no peer.  Up to kWaitLink it
  // may offer.
  enum class State {
    kStart,
    kOffered,   // to processes that this one has met at the service
    kQueued,    // too many binders wait
    kBinder,    // listening at the name
    kHello,     // connected; HELLO sent
    kWaitLink,  // decider: the link is being made
    kWaitOpen,  // the peer decides
    kOpenSent,  // decider
    kAdopting,  // a number is agreed; both streams are to be adopted
    kDone,
  };

  // Reads both addresses.  Returns kNone, or why there can be no lane between
  // them.
  base::Reason ReadNames(sockaddr_storage* local, Address* local_address);
  // Enters the session in the table of tuples.  Returns false if the session
  // has failed.
  bool List(const Address& local_address);
  // Reads what known processes of this host have sent over their links.
  void LookAtLinks();
  // Returns true if the peer's own offer was there, or if this end has made
  // one.
  bool TryLinks();
  // Called on the connecting end when the accepting end begins its search in
  // this process.
  void OfferHere();
  bool Decides(const Uuid& peer) const;
  // Takes back all offers but one, number `but` of `link`.
  void TakeBackOffers(int but = -1, const PeerLink* link = nullptr);
  void OfferEnded(bool known, base::Reason reason);
  void TryName();
  // --- In the meeting directory (session_far.cc)
  void TryFar();
  void PublishFar();
  void VisitFar();
  std::chrono::milliseconds FarLimit() const;
  // Goes to the directory if a name of this connection's is there, although the
  // peer's address is of this namespace: its destination was redirected.
  bool Redirected();
  bool MayBeRedirected() const;
  // Enters the session under the tuple that a far search, or another, has.
  bool ListAs(bool far);
  // Nobody has come.
  void NobodyFar();
  // Goes on with the next place, or over RDMA.  Returns false if the search is
  // over.
  bool GoOnFar(base::Reason reason);
  void BeginRdma();
  void RetrySoon(base::Reason if_exhausted);
  void Queue();
  std::uint16_t ServicePort() const {
    return role_ == stream::Role::kConnector ? peer_port_ : local_port_;
  }
  void Bound(base::PeerSocket fd, std::chrono::milliseconds limit);
  void WaitAccept();
  void OnAccept();
  bool Connected(base::PeerSocket fd);
  // Says HELLO if this process may talk to the peer's.
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
  Tuple ends_{};
  Tuple peers_ends_{};  // as the peer sees them; far_ only
  Address own_address_{};
  bool far_ = false;  // looks in the meeting directory
  bool redirected_ = false;
  int looks_ = 0;              // how often Redirected is yet to be asked
  int place_ = -1;             // where this end waits, or where it has called
  std::uint32_t refused_ = 0;  // places where the peer is not
  base::Reason far_why_ = base::Reason::kNone;  // of the last of these
  bool nobody_far_ = false;                     // no peer has come there
  std::optional<std::chrono::steady_clock::time_point> far_until_;
  Address peer_address_{};
  std::uint16_t peer_port_ = 0;
  std::uint16_t local_port_ = 0;
  std::uint32_t scope_ = 0;        // of a link-local address
  Traffic before_{};               // when the search began
  bool listed_ = false;            // in the core's table of tuples
  bool remembered_plain_ = false;  // no peer was there lately: do not wait
  int tries_ = 0;
  // Until when the session may look for its peer.  Not set until it has queued.
  std::optional<std::chrono::steady_clock::time_point> patience_;

  base::PeerSocket listener_fd_;
  boost::asio::posix::stream_descriptor listener_;
  Timer timer_;
  std::shared_ptr<Channel> channel_;
  bool from_binder_ = false;  // the channel was accepted at this end's name
  bool stranger_ = false;     // a process of another user has connected there

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
  Proof peers_proof_ = Proof::kNone;  // the peer's proof of this end
  std::unique_ptr<lane::Lane> lane_;

  std::shared_ptr<RdmaMeeting> rdma_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SESSION_H_
