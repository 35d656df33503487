// How a session meets its peer over the links of processes that know each
// other: offers of numbers, and the answers.

#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/peer_link.h"
#include "lib/rendezvous/session.h"

namespace rcsock::rendezvous {
namespace {

using std::chrono::milliseconds;

// How long an offer may go without an answer.  Then the session goes to the
// name, which costs more than all that an offer does.  The two ends of a quiet
// connection count its calls some requests apart.
constexpr milliseconds kOfferLimit{25};
// The peer's application may be in a kernel call that leaves no gap.
constexpr milliseconds kAdoptLimit{2000};

}  // namespace

// Works on a copy of the list: a packet may change the list.  Known processes
// are of our own uid.
void Session::LookAtLinks() {
  const std::vector<Uuid> peers =
      core_->neighbours.At(peer_address_, ServicePort());
  for (const Uuid& peer : peers) {
    for (const bool decider : {false, true}) {
      const auto link = core_->FindLink(peer, core_->OwnUid(), decider);
      if (link != nullptr) link->Look();
    }
  }
}

// Looks for the peer over the links with known processes of this host, with no
// third party.  The deciding end offers a number at once.  The other end only
// waits for the offer, and so do both ends if the guess is wrong.
//
// If the other end looks in this process, nothing is guessed, however new the
// service is.  Both ends are served at once if the process has met itself
// before.
bool Session::TryLinks() {
  Session* const other = core_->FindSession(tuple_, stream::OtherRole(role_));
  const bool self = other != nullptr;
  if (self) {
    core_->neighbours.Note(peer_address_, ServicePort(), core_->uuid);
    if (role_ == stream::Role::kAcceptor) other->OfferHere();
    core_->LookAtSelf();
    if (state_ != State::kStart) return true;
  }
  const auto& known = core_->neighbours.At(peer_address_, ServicePort());
  if (const auto link = core_->FindOffer(tuple_, role_)) {
    if (link->TakeOffer(shared_from_this())) return true;
  }
  bool hope = false;
  for (const Uuid& peer : known) {
    const bool mine = Decides(peer);
    const std::shared_ptr<PeerLink> link =
        core_->FindLink(peer, core_->OwnUid(), mine);
    if (link == nullptr) continue;
    if (!mine || link->Offer(shared_from_this())) hope = true;
  }
  if (!hope) return false;
  state_ = State::kOffered;
  StartTimer(kOfferLimit);
  if (self) core_->LookAtSelf();
  return true;
}

void Session::OfferHere() {
  if (state_ > State::kHello) return;
  const auto link = core_->FindLink(core_->uuid, core_->OwnUid(), true);
  if (link == nullptr || cancelled()) return;
  for (const Offer& offer : offers_) {
    if (offer.link == link) return;
  }
  link->Offer(shared_from_this());
}

void Session::Offered(std::shared_ptr<PeerLink> link, int index,
                      std::uint32_t epoch) {
  offers_.push_back({std::move(link), index, epoch});
}

void Session::TakeBackOffers(int but, const PeerLink* link) {
  for (const Offer& offer : std::exchange(offers_, {})) {
    if (offer.index == but && offer.link.get() == link) continue;
    offer.link->CloseOurs(offer.index, offer.epoch, base::Reason::kPeerRefused);
  }
}

void Session::Rejected(const PeerLink* link, int index, base::Reason why) {
  const auto mine = [link, index](const Offer& offer) {
    return offer.link.get() == link && offer.index == index;
  };
  OfferEnded(std::erase_if(offers_, mine) > 0, why);
}

void Session::LinkEnded(const PeerLink* link, base::Reason reason) {
  const auto mine = [link](const Offer& offer) {
    return offer.link.get() == link;
  };
  OfferEnded(std::erase_if(offers_, mine) > 0, reason);
}

void Session::OfferEnded(bool known, base::Reason reason) {
  if (!known) return Fail(reason, false);
  if (!offers_.empty()) return;
  if (state_ == State::kOffered) return TryName();
  if (state_ == State::kOpenSent) Fail(reason, false);
}

void Session::OnLinkMessage(Packet& packet) {
  base::Reason why;
  std::shared_ptr<PeerLink> link =
      PeerLink::Accept(core_, peer_, channel_, packet, &why);
  if (link == nullptr) return Fail(why, false);
  channel_.reset();
  core_->AddLink(link);
  link->SetFounder(weak_from_this());
}

bool Session::Expects(const PeerLink& link) const {
  if (cancelled() || rdma_ != nullptr || far_ != link.far()) return false;
  switch (state_) {
    case State::kStart:
    case State::kOffered:
    case State::kQueued:
    case State::kBinder:
      return link.OwnUid();
    case State::kHello:
      // The peer has this end's HELLO.  The peer may answer before this end
      // reads the peer's HELLO.
      return !far_ && (link.OwnUid() || link.uid() == peer_uid_);
    case State::kWaitOpen:
      return peer_ == link.uuid() && peer_uid_ == link.uid();
    default:
      return false;
  }
}

bool Session::PrepareOpen(OpenMsg* message) {
  if (cancelled() || state_ > State::kWaitLink) return false;
  std::memcpy(message->tuple, &tuple_, sizeof message->tuple);
  message->role = static_cast<std::uint8_t>(role_);
  std::memcpy(message->nonce, mine_.data(), sizeof message->nonce);
  message->claim = OwnClaim();
  return true;
}

void Session::OpenSent(std::shared_ptr<PeerLink> link, int index,
                       std::uint32_t epoch) {
  state_ = State::kOpenSent;
  link_ = std::move(link);
  index_ = index;
  epoch_ = epoch;
}

void Session::Opened(std::shared_ptr<PeerLink> link, int index,
                     std::uint32_t epoch, const stream::Nonce& peers,
                     Proof proof) {
  TakeBackOffers(index, link.get());
  proof_ = proof;
  link_ = std::move(link);
  index_ = index;
  epoch_ = epoch;
  peers_ = peers;
  CloseListener();
  CloseChannel();
  state_ = State::kAdopting;
  StartTimer(kAdoptLimit);
  if (cancelled()) return Fail(base::Reason::kNone, false);
  seeker_->Adopt();
}

void Session::ClaimedInVain(const PeerLink& link) {
  // Any other process may claim anything: the true peer may still come.
  if (state_ == State::kWaitOpen && link.uuid() == peer_) {
    Fail(base::Reason::kNotProven, false);
  }
}

void Session::NotProven(PeerLink* link, int index, std::uint32_t epoch) {
  constexpr base::Reason kWhy = base::Reason::kNotProven;
  link->CloseOurs(index, epoch, kWhy);
  Rejected(link, index, kWhy);
}

}  // namespace rcsock::rendezvous
