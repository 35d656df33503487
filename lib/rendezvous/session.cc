#include "lib/rendezvous/session.h"

#include <sodium/crypto_generichash.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/config.h"
#include "lib/base/identity.h"
#include "lib/base/log.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/rendezvous/cm.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/meet_directory.h"
#include "lib/rendezvous/peer_link.h"
#include "lib/rendezvous/rdma_meeting.h"

namespace rcsock::rendezvous {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

// How long a binder waits for its peer.  Both ends of a busy connection begin
// to look within milliseconds of each other.
constexpr milliseconds kMeetLimit{1000};
constexpr milliseconds kTalkLimit{1000};
// A burst of thousands of sessions passes by a few hundred at a time.
constexpr milliseconds kQueueLimit{20000};
// An accepting end cannot know whether its peer is under rcsock.
constexpr milliseconds kAcceptorLimit{5000};
// A peer is between bind and listen, or has just left: 1, 2, 4, 8, 16 ms.
constexpr int kMaxTries = 5;
constexpr int kBacklog = 8;
// How often a binder looks whether its peer waits in the meeting directory.
constexpr int kLooks = 8;

// Binds the nonce to one channel.  A process between two others may hand on the
// nonces of one channel to the other, but not these results.  So the MAC of
// rule 4 differs on each channel.
stream::Nonce BoundTo(std::span<const std::uint8_t> channel,
                      const stream::Nonce& nonce) {
  stream::Nonce bound;
  crypto_generichash(bound.data(), bound.size(), channel.data(), channel.size(),
                     nonce.data(), nonce.size());
  return bound;
}

}  // namespace

Session::Session(Core* core, std::shared_ptr<Seeker> seeker)
    : core_(core),
      seeker_(std::move(seeker)),
      role_(seeker_->role()),
      listener_(core->io),
      timer_(core) {}

Session::~Session() {
  // Only a session that never began, or that TearDown has cut short, has a
  // listener here.
  if (listener_.is_open()) listener_.release();
}

void Session::Begin() {
  if (cancelled()) return Finish();
  if (state_ != State::kStart) return;
  if (listed_) return TryName();
  sockaddr_storage local{};
  Address local_address;
  const base::Reason none = ReadNames(&local, &local_address);
  if (none != base::Reason::kNone) return Fail(none, true);
  const bool here =
      local_address == peer_address_ || core_->host.Has(peer_address_);
  // If shm is switched off, a device may connect a host to itself.
  const bool by_shm = here && seeker_->MayShm();
  far_ = !here && seeker_->MayShm() && meet_directory::Given();
  if (!by_shm && !far_ && !seeker_->MayRdma()) {
    return Fail(base::Reason::kPolicy, true);
  }
  // The process may have one uid again when the stream looks the next time.
  if (by_shm && base::OwnUid() == base::kNoUid) {
    return Fail(base::Reason::kPeerUid, false);
  }
  remembered_plain_ = role_ == stream::Role::kConnector &&
                      core_->plain.Has(peer_address_, peer_port_);
  if (!List(local_address)) return;
  if (by_shm) {
    if (MayBeRedirected()) looks_ = kLooks;
    if (!Redirected() && !TryLinks()) TryName();
    return;
  }
  far_ ? TryFar() : BeginRdma();
}

void Session::BeginRdma() {
  rdma_ = std::make_shared<RdmaMeeting>(core_, this);
  const auto meeting = rdma_;  // it may end at once
  meeting->Begin(own_address_, scope_, peer_address_, peer_port_);
}

base::Reason Session::ReadNames(sockaddr_storage* local,
                                Address* local_address) {
  sockaddr_storage peer{};
  // The anchor is closed or reset already.
  if (!seeker_->Names(local, &peer)) return base::Reason::kShortLived;
  scope_ = ScopeOf(*local);
  if (!Normalise(*local, local_address, &local_port_) ||
      !Normalise(peer, &peer_address_, &peer_port_)) {
    return base::Reason::kPolicy;
  }
  // A socket connected to itself by simultaneous open has but one end.
  return *local_address == peer_address_ && local_port_ == peer_port_
             ? base::Reason::kPolicy
             : base::Reason::kNone;
}

bool Session::List(const Address& local_address) {
  // Takes what these links have brought, before a packet can find this session.
  // Otherwise an offer that the peer has taken back could be answered.
  LookAtLinks();
  own_address_ = local_address;
  ends_ =
      MakeTuple(role_, local_address, local_port_, peer_address_, peer_port_);
  tuple_ = far_ ? ClientHalf(ends_) : ends_;
  before_ = TrafficOf(fd());
  if (!NewNonce()) {
    Fail(base::Reason::kLaneError, false);
    return false;
  }
  if (!core_->AddSession(this)) {
    Fail(base::Reason::kBusy, false);
    return false;
  }
  return listed_ = true;
}

bool Session::BeginOverLink() {
  sockaddr_storage local{};
  Address local_address;
  if (cancelled() || !seeker_->MayShm() ||
      ReadNames(&local, &local_address) != base::Reason::kNone ||
      local_address != peer_address_) {
    return false;
  }
  // A cancelled session of this tuple goes in the conductor's next turn.  This
  // session begins after that.
  const Tuple tuple =
      MakeTuple(role_, local_address, local_port_, peer_address_, peer_port_);
  if (core_->FindSession(tuple, role_) != nullptr) return false;
  if (core_->neighbours.At(peer_address_, ServicePort()).empty() &&
      core_->FindSession(tuple, stream::OtherRole(role_)) == nullptr) {
    return false;
  }
  return !List(local_address) || TryLinks();
}

bool Session::NewNonce() {
  return core_->RandomBytes(mine_.data(), mine_.size());
}

Claim Session::OwnClaim() const {
  const BorrowedNumber number = fd();
  return {static_cast<std::uint32_t>(static_cast<int>(number)),
          TrafficOf(number)};
}

bool Session::CanBePeer(const Claim& claim, bool later) const {
  return CanBeOne(later ? &before_ : nullptr, TrafficOf(fd()), claim.traffic);
}

std::uint32_t Session::OtherEnd() const {
  return core_->diag.OtherEnd(fd(), tuple_, role_, scope_);
}

bool Session::Decides(const Uuid& peer) const {
  return core_->uuid == peer ? role_ == stream::Role::kConnector
                             : core_->uuid < peer;
}

void Session::TryName() {
  if (far_) return TryFar();
  // The program may have called seteuid since Begin.
  if (base::OwnUid() == base::kNoUid) {
    return Fail(base::Reason::kPeerUid, false);
  }
  // A new socket is one more number to close, and other processes can send
  // files to it.
  if (base::ClosesPileUp()) return Fail(base::Reason::kNoFds, false);
  base::PeerSocket fd(base::UniqueFd(base::OpenHigh([&] {
    return ::syscall(SYS_socket, AF_UNIX,
                     SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  })));
  if (!fd.ok()) return Fail(ErrnoReason(errno), false);
  // No files before the peer's process is known.
  fd.RefuseFiles();
  sockaddr_un name;
  const socklen_t length = MeetingName(tuple_, &name);
  const auto* address = reinterpret_cast<const sockaddr*>(&name);
  // Too many binders wait, or a wait was in vain a moment ago.  The peer may
  // still be waiting for this stream.
  const bool may_bind = core_->MayBind() && !remembered_plain_;
  if (may_bind) {
    if (::bind(fd.get(), address, length) == 0) {
      return Bound(std::move(fd),
                   looks_ > 0 ? kMeetLimit / kLooks : kMeetLimit);
    }
    if (errno != EADDRINUSE) return Fail(ErrnoReason(errno), false);
  }
  // A name that the kernel chooses (Channel::name).
  const sockaddr_un none{AF_UNIX, {}};
  (void)::bind(fd.get(), reinterpret_cast<const sockaddr*>(&none),
               sizeof none.sun_family);
  if (::connect(fd.get(), address, length) != 0) {
    // EAGAIN: the backlog is full, so another process connects there, too.
    if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN) {
      return Fail(ErrnoReason(errno), false);
    }
    if (!may_bind && errno != EAGAIN) {
      if (!remembered_plain_) return Queue();
      return Fail(stranger_ ? base::Reason::kPeerUid : base::Reason::kPeerPlain,
                  false);
    }
    return RetrySoon(base::Reason::kPeerPlain);
  }
  from_binder_ = false;
  if (Connected(std::move(fd))) StartTimer(kTalkLimit);
}

void Session::RetrySoon(base::Reason if_exhausted) {
  if (tries_ == kMaxTries) return Fail(if_exhausted, false);
  state_ = State::kStart;
  StartTimer(milliseconds(1 << tries_++));
}

void Session::Queue() {
  const auto now = std::chrono::steady_clock::now();
  if (!patience_) {
    patience_ = now + (role_ == stream::Role::kConnector ? kQueueLimit
                                                         : kAcceptorLimit);
  }
  if (now >= *patience_) return Fail(base::Reason::kTooMany, false);
  state_ = State::kQueued;
  StartTimer(std::chrono::ceil<milliseconds>(*patience_ - now));
  core_->queue.Add(weak_from_this());
}

void Session::FromQueue() {
  if (cancelled()) return Fail(base::Reason::kNone, false);
  state_ = State::kStart;
  TryName();
}

void Session::Bound(base::PeerSocket fd, milliseconds limit) {
  if (::listen(fd.get(), kBacklog) != 0) {
    return Fail(ErrnoReason(errno), false);
  }
  error_code error;
  listener_.assign(fd.get(), error);
  if (error) return Fail(ErrnoReason(error.value()), false);
  listener_fd_ = std::move(fd);
  ++core_->binders;
  state_ = State::kBinder;
  StartTimer(limit);
  WaitAccept();
}

void Session::WaitAccept() {
  listener_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                       [self = shared_from_this()](const error_code& error) {
                         if (error) return;
                         Step step(self->core_);
                         self->OnAccept();
                       });
}

// Any process may connect here, and say nothing.  So the binder goes on
// accepting until its peer has said HELLO.  The last visitor takes the place of
// the one before.
void Session::OnAccept() {
  const bool waits = state_ == State::kBinder || state_ == State::kHello;
  if (!waits || !listener_fd_.ok()) return;
  // While closes of foreign files pile up, visitors wait in the kernel's queue.
  if (base::ClosesPileUp()) {
    core_->After(100, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->OnAccept();
    });
    return;
  }
  base::PeerSocket fd(base::UniqueFd(base::OpenHigh([&] {
    return ::accept4(listener_fd_.get(), nullptr, nullptr,
                     SOCK_CLOEXEC | SOCK_NONBLOCK);
  })));
  if (!fd.ok()) {
    if (errno == EAGAIN) return WaitAccept();
    return Fail(ErrnoReason(errno), false);
  }
  fd.Inherit(listener_fd_);
  if (!far_ && !PeerIsTrusted(fd.get())) {
    stranger_ = true;
    return WaitAccept();
  }
  // The visitor before may have said HELLO meanwhile.
  if (const auto before = channel_) before->Take();
  if (state_ != State::kBinder && state_ != State::kHello) return;
  CloseChannel();
  from_binder_ = true;
  if (Talk(std::move(fd))) WaitAccept();
}

bool Session::Connected(base::PeerSocket fd) {
  if (far_ || PeerIsTrusted(fd.get())) return Talk(std::move(fd));
  // A program that is another user for a moment is to look again.
  Fail(base::Reason::kPeerUid, base::OwnUid() != base::kNoUid);
  return false;
}

bool Session::Talk(base::PeerSocket fd) {
  fd.TakeFiles();
  channel_ = std::make_shared<Channel>(core_, std::move(fd), from_binder_);
  if (far_) channel_->SetFar();
  peer_uid_ = channel_->peer_uid();
  channel_->SetOwner(weak_from_this());
  if (!channel_->Start()) {
    Fail(base::Reason::kNoFds, false);
    return false;
  }
  state_ = State::kHello;
  SendHello();
  return true;
}

void Session::SendHello() {
  auto hello = NewMessage<Hello>();
  std::memcpy(hello.uuid, core_->uuid.data(), sizeof hello.uuid);
  hello.thread = core_->thread_number;
  std::memcpy(hello.tuple, &ends_, sizeof hello.tuple);
  hello.role = static_cast<std::uint8_t>(role_);
  channel_->Send(hello);
}

void Session::OnPacket(Packet& packet) {
  if (cancelled()) return Fail(base::Reason::kNone, false);
  switch (state_) {
    case State::kHello:
      return OnHello(packet);
    case State::kWaitOpen:
      return OnLinkMessage(packet);
    default:
      return CloseChannel();
  }
}

void Session::OnHello(Packet& packet) {
  Header header;
  const bool sound = packet.ReadHeader(&header) && header.type == Type::kHello;
  if (sound && header.version != kVersion) {
    // In the directory anybody may say this.
    return Fail(base::Reason::kPeerVersion, !far_);
  }
  Hello hello;
  const bool whole = sound && packet.Read(&hello) && packet.fd_count == 0;
  if (whole) std::memcpy(&peers_ends_, hello.tuple, sizeof hello.tuple);
  if (!whole || (far_ ? ClientHalf(peers_ends_) : peers_ends_) != tuple_ ||
      hello.role != 1 - static_cast<std::uint8_t>(role_)) {
    // The visitor is not the peer.  A binder's true peer may still come.
    CloseChannel();
    if (!from_binder_) return Fail(base::Reason::kPeerRefused, false);
    state_ = State::kBinder;
    return;
  }
  std::memcpy(peer_.data(), hello.uuid, peer_.size());
  channel_->set_peer_thread(hello.thread);
  CloseListener();
  Decide();
}

void Session::Decide() {
  StartTimer(kTalkLimit);
  if (!Decides(peer_)) {
    TakeBackOffers();
    state_ = State::kWaitOpen;
    return;
  }
  for (const Offer& offer : offers_) {
    if (offer.link->uuid() != peer_ || offer.link->uid() != peer_uid_) continue;
    // The peer looks for this stream, so it answers that offer.
    state_ = State::kOpenSent;
    const Offer this_one = offer;
    TakeBackOffers(this_one.index, this_one.link.get());
    offers_.push_back(this_one);
    return;
  }
  TakeBackOffers();
  state_ = State::kWaitLink;
  std::shared_ptr<PeerLink> link = core_->FindLink(peer_, peer_uid_, true);
  if (link == nullptr) {
    base::Reason why;
    link = PeerLink::Make(core_, peer_, std::move(channel_), &why);
    channel_.reset();
    if (link == nullptr) return Fail(why, false);
    core_->AddLink(link);
  }
  link->Open(shared_from_this());
}

void Session::Adopted() {
  if (const auto meeting = rdma_) return meeting->Adopted();
  if (state_ != State::kAdopting || adopted_) return;
  if (cancelled()) return Fail(base::Reason::kNone, false);
  adopted_ = true;
  if (core_->SharedMemoryIsSpent()) {
    return Fail(base::Reason::kSharedMemory, false);
  }
  // The ring must be there before the peer has READY: then the peer may post.
  errno = 0;
  lane_ = link_->link()->OpenLane(index_);
  if (lane_ == nullptr) {
    return Fail(
        errno == ENOMEM ? base::Reason::kNoMemory : base::Reason::kLaneError,
        false);
  }
  // So must the conductor's wish to hear of what comes during the switch.  It
  // then needs no fence, which would interrupt all processors.
  static_cast<lane::shm::ShmLane*>(lane_.get())
      ->Wish(
          lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller,
          0);
  const bool self = link_->uuid() == core_->uuid;
  link_->SendReady(index_, epoch_, proof_);
  if (peer_ready_) Deliver();
  if (self) core_->LookAtSelf();
}

void Session::PeerReady(Proof theirs) {
  peer_ready_ = true;
  peers_proof_ = theirs;
  if (adopted_) Deliver();
}

// Before the stream is adopted there is nothing to do here.
void Session::Look() {
  if (cancelled() || rdma_ != nullptr) return;
  if (state_ == State::kOffered) {
    LookAtLinks();
  } else if (state_ == State::kAdopting && adopted_) {
    if (const std::shared_ptr<PeerLink> link = link_) link->Look();
  }
}

void Session::Deliver() {
  if (state_ != State::kAdopting) return;
  if (cancelled() || link_->dead()) {
    return Fail(base::Reason::kPeerGone, false);
  }
  const auto keep = shared_from_this();
  const std::shared_ptr<PeerLink> link = std::move(link_);
  link->Delivered(index_, seeker_);
  core_->lanes[lane_.get()] = {link, index_, epoch_};
  core_->met.Note(peer_address_, ServicePort());
  // Rule 2.  The peer may be another user's, or a process whose descriptors
  // this one cannot see.  Then the peer has yet to show that it knows the
  // connection.  Both ends must decide this alike.
  const bool own = link->OwnUid();
  const bool authenticated =
      own && proof_ == Proof::kSeen && peers_proof_ == Proof::kSeen;
  const stream::Nonce mine = BoundTo(link->name(), mine_);
  const stream::Nonce peers = BoundTo(link->name(), peers_);
  if (own) {
    core_->neighbours.Note(peer_address_, ServicePort(), link->uuid());
  }
  Finish();
  seeker_->OnLink(link->link(), index_);
  seeker_->LaneOpen(std::move(lane_), epoch_, mine, peers, authenticated);
}

void Session::OnChannelEnd(base::Reason reason) {
  switch (state_) {
    case State::kHello:
      CloseChannel();
      if (!from_binder_) return RetrySoon(base::Reason::kPeerRefused);
      state_ = State::kBinder;
      return;
    case State::kWaitOpen:
      return Fail(reason, false);
    default:
      // The deciding end goes on over the link.
      return CloseChannel();
  }
}

void Session::StartTimer(milliseconds limit) {
  timer_.Start(limit, shared_from_this(), &Session::OnTimer);
}

void Session::OnTimer() {
  if (cancelled()) return Fail(base::Reason::kNone, false);
  switch (state_) {
    case State::kStart:
    case State::kOffered:
      return TryName();
    case State::kHello:
      if (!from_binder_) return Fail(base::Reason::kTimeout, false);
      [[fallthrough]];
    case State::kBinder:
      if (far_) return NobodyFar();
      if (Redirected()) return;
      if (looks_ > 0 && --looks_ > 0) return StartTimer(kMeetLimit / kLooks);
      if (core_->met.Has(peer_address_, ServicePort())) {
        // The peer is late, or waits in its own process's queue.  This session
        // goes to the end of this queue.
        CloseChannel();
        CloseListener();
        Queue();
        core_->NextInQueue();
        return;
      }
      if (role_ == stream::Role::kConnector) {
        core_->plain.Note(peer_address_, peer_port_);
      }
      return Fail(stranger_ ? base::Reason::kPeerUid : base::Reason::kPeerPlain,
                  false);
    case State::kQueued:
      return Fail(base::Reason::kTooMany, false);
    case State::kAdopting:
      return Fail(base::Reason::kBusy, false);
    case State::kDone:
      return;
    default:
      return Fail(base::Reason::kTimeout, false);
  }
}

void Session::CloseListener() {
  if (!listener_fd_.ok()) return;
  if (listener_.is_open()) listener_.release();
  // While the name is there, this end listens: nobody else removes the name.
  if (far_) meet_directory::Withdraw(tuple_, std::exchange(place_, -1));
  listener_fd_.reset();
  --core_->binders;
  core_->NextInQueue();
}

void Session::CloseChannel() {
  if (channel_ == nullptr) return;
  channel_->Close();
  channel_.reset();
}

void Session::Finish() {
  state_ = State::kDone;
  timer_.Stop();
  CloseListener();
  CloseChannel();
  TakeBackOffers();
  if (const auto meeting = std::move(rdma_)) meeting->Close();
  if (std::exchange(listed_, false)) core_->RemoveSession(this);
  core_->ForgetSeeker(seeker_.get(), this);
}

void Session::Fail(base::Reason reason, bool final) {
  if (state_ == State::kDone) return;
  const auto keep = shared_from_this();
  if (far_ && GoOnFar(reason)) return;
  const std::shared_ptr<PeerLink> link = std::move(link_);
  lane_.reset();
  Finish();
  if (link != nullptr) link->CloseOurs(index_, epoch_, reason);
  if (cancelled()) return;
  RCSOCK_LOG(2, "no lane: %s%s", base::ReasonKey(reason),
             final ? ", for good" : "");
  seeker_->SeekFailed(reason, final);
}

}  // namespace rcsock::rendezvous
