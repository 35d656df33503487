// How a session finds its peer in the meeting directory: an end of another
// network namespace of this host.  The connecting end listens there, and the
// accepting end calls.

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/rendezvous/core.h"
#include "lib/rendezvous/meet_directory.h"
#include "lib/rendezvous/near_network.h"
#include "lib/rendezvous/peer_link.h"
#include "lib/rendezvous/rdma_meeting.h"
#include "lib/rendezvous/session.h"
#include "lib/rendezvous/witness.h"

namespace rcsock::rendezvous {
namespace {

using std::chrono::milliseconds;

// How long an end looks here.  Both ends of a busy connection begin to look
// within milliseconds of each other.
constexpr milliseconds kFarLimit{1000};
// The same time, if a lane to another host may be had instead.
constexpr milliseconds kBeforeRdma{60};
// The same time, if nobody was there a moment ago.
constexpr milliseconds kBrief{50};
constexpr int kBacklog = 8;
// The accepting end calls after 1, 2, 4, ... ms, and then each 128 ms.
constexpr int kMaxDoublings = 7;

base::PeerSocket NewSocket() {
  base::PeerSocket fd(base::UniqueFd(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_UNIX,
                     SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  })));
  if (fd.ok()) fd.RefuseFiles();
  return fd;
}

}  // namespace

milliseconds Session::FarLimit() const {
  return seeker_->MayRdma() && RdmaPossible() ? kBeforeRdma : kFarLimit;
}

void Session::TryFar() {
  if (!far_until_) {
    // The accepting end cannot know whether this client is under rcsock as the
    // last one was.
    const bool brief = role_ == stream::Role::kConnector &&
                       core_->nobody_far.Has(peer_address_, ServicePort());
    far_until_ =
        std::chrono::steady_clock::now() + (brief ? kBrief : FarLimit());
  }
  // A new socket is one more number to close, and other processes can send
  // files to it.
  if (base::ClosesPileUp()) return Fail(base::Reason::kNoFds, false);
  role_ == stream::Role::kConnector ? PublishFar() : VisitFar();
}

void Session::PublishFar() {
  const auto left = *far_until_ - std::chrono::steady_clock::now();
  if (left <= std::chrono::nanoseconds(0)) return NobodyFar();
  if (!core_->MayBind()) {
    // The time in the queue does not count.
    far_until_.reset();
    return Queue();
  }
  base::PeerSocket fd = NewSocket();
  if (!fd.ok()) return Fail(ErrnoReason(errno), false);
  const int place = meet_directory::Publish(fd.get(), tuple_, kBacklog);
  if (place < 0) return Fail(base::Reason::kMeetDir, false);
  place_ = place;
  Bound(std::move(fd), std::chrono::ceil<milliseconds>(left));
  // If this end does not listen, nobody else removes the name.
  if (!listener_fd_.ok()) {
    meet_directory::Withdraw(tuple_, std::exchange(place_, -1));
  }
}

void Session::VisitFar() {
  for (int place = 0; place < meet_directory::kPlaces; ++place) {
    if (refused_ & 1u << place) continue;
    const base::UniqueFd found = meet_directory::Find(tuple_, place);
    if (!found.ok()) continue;
    base::PeerSocket fd = NewSocket();
    if (!fd.ok()) return Fail(ErrnoReason(errno), false);
    // A name that the kernel chooses (Channel::name).
    const sockaddr_un none{AF_UNIX, {}};
    ::syscall(SYS_bind, fd.get(), &none, sizeof none.sun_family);
    if (meet_directory::Call(fd.get(), found.get()) != 0) continue;
    place_ = place;
    from_binder_ = false;
    if (Connected(std::move(fd))) StartTimer(kFarLimit);
    return;
  }
  if (std::chrono::steady_clock::now() >= *far_until_) return NobodyFar();
  state_ = State::kStart;
  StartTimer(milliseconds(1 << std::min(tries_++, kMaxDoublings)));
}

void Session::NobodyFar() {
  if (!redirected_) core_->nobody_far.Note(peer_address_, ServicePort());
  if (nobody_far_) return;
  nobody_far_ = true;
  // The process that was called was not the peer, or the peer could not go on.
  if (refused_ != 0) return Fail(far_why_, false);
  base::Reason why = base::Reason::kNoDevice;
  switch (PlaceOf(ToSockaddr(peer_address_, scope_, peer_port_))) {
    case Place::kGateway:
      why = base::Reason::kTranslated;
      break;
    case Place::kBeside:
      why = base::Reason::kPeerPlain;
      break;
    case Place::kUnknown:
      break;
  }
  Fail(why, false);
}

bool Session::GoOnFar(base::Reason reason) {
  if (cancelled() || rdma_ != nullptr || state_ >= State::kAdopting ||
      reason == base::Reason::kNoThread) {
    return false;
  }
  const bool called = role_ == stream::Role::kAcceptor && place_ >= 0;
  if (!called && redirected_ && nobody_far_) {
    // Somebody else's name was there.
    nobody_far_ = false;
    CloseChannel();
    state_ = State::kStart;
    if (!ListAs(false)) return false;
    StartTimer(milliseconds(0));
    return true;
  }
  // A directory that is of no use hides no peer of another host.
  const bool over = nobody_far_ || reason == base::Reason::kMeetDir;
  if (!called && !(over && seeker_->MayRdma() && RdmaPossible())) {
    return false;
  }
  if (const auto link = std::exchange(link_, nullptr)) {
    link->CloseOurs(index_, epoch_, reason);
  }
  CloseChannel();
  CloseListener();
  state_ = State::kStart;
  if (called) {
    refused_ |= 1u << std::exchange(place_, -1);
    far_why_ = reason;
    StartTimer(milliseconds(0));
    return true;
  }
  if (!ListAs(false)) return false;
  BeginRdma();
  return true;
}

bool Session::ListAs(bool far) {
  core_->RemoveSession(this);
  far_ = far;
  tuple_ = far ? ClientHalf(ends_) : ends_;
  return listed_ = core_->AddSession(this);
}

bool Session::MayBeRedirected() const {
  return role_ == stream::Role::kAcceptor && !redirected_ &&
         meet_directory::Given() && !IsLoopback(peer_address_);
}

bool Session::Redirected() {
  if (!MayBeRedirected()) return false;
  const Tuple half = ClientHalf(ends_);
  bool there = false;
  for (int place = 0; place < meet_directory::kPlaces && !there; ++place) {
    there = meet_directory::Find(half, place).ok();
  }
  if (!there) return false;
  redirected_ = true;
  CloseChannel();
  CloseListener();
  if (ListAs(true)) {
    far_until_ = std::chrono::steady_clock::now();
    state_ = State::kStart;
    TryFar();
  } else {
    Fail(base::Reason::kBusy, false);
  }
  return true;
}

void Session::TakeHello() {
  const auto channel = channel_;
  if (state_ == State::kHello && channel != nullptr) channel->Take();
}

std::uint32_t Session::FarEnd(int witness) const {
  const stream::Role other = role_ == stream::Role::kConnector
                                 ? stream::Role::kAcceptor
                                 : stream::Role::kConnector;
  const std::uint32_t inode = AskWitness(witness, ends_, other);
  if (inode != 0 || peers_ends_ == ends_) return inode;
  // If the peer tells the truth, the destination was translated.  Another
  // connection of this namespace may have the ends that the peer names.  Then
  // the peer's end belongs to that other connection.
  if (core_->diag.OthersHave(fd(), peers_ends_, role_, scope_)) return 0;
  return AskWitness(witness, peers_ends_, other);
}

}  // namespace rcsock::rendezvous
