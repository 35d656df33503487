// How a stream comes onto a lane: the look for its peer, the adoption, the
// lane.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/backoff.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/fd/spare.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/seek_gate.h"
#include "lib/posix/socket/snapshot.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/call_marks.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/address.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;
using stream::Stream;

namespace {
// Returns whether an end finds this reason without waiting for a peer: the
// address is no RDMA device's (a connection over another card), or what a
// device needs is not there.  A look after each few calls would pay for that
// each time.
bool AtOnce(Reason reason) {
  switch (reason) {
    case Reason::kNoRoute:
    case Reason::kNoFds:
    case Reason::kNoMemory:
    case Reason::kMemlock:
    case Reason::kDeviceFull:
    case Reason::kRdmaError:
      return true;
    default:
      return false;
  }
}
}  // namespace

bool Sock::SeeksRemote() const {
  return !(terms_.shm && local_peer_.load(std::memory_order_relaxed));
}

bool Sock::MayMeetFar() const {
  return terms_.shm && !local_peer_.load(std::memory_order_relaxed) &&
         *base::GetConfig().meet_dir != '\0';
}

bool Sock::SeeksRdma() const {
  return SeeksRemote() &&
         !(MayMeetFar() && !(terms_.rdma && rendezvous::RdmaPossible()));
}

void Sock::LookForAnswer() {
  const int saved = errno;
  Critical critical;
  if (Conductor* conductor = Conductor::IfRunning()) conductor->Look(this);
  errno = saved;
}

// The look for other calls may be wrong either way here.  TryAdopt looks again,
// and a call that is inside comes here itself.  Of two calls that come out at
// once one sees the other's mark gone, since each has cleared its own before
// this fence.  A call that was inside when TryAdopt looked finds the stream
// wanted.
void Sock::LastOut() {
  base::FullFence();
  if (calls_.Inside() || CallIn(this)) return;
  const int saved = errno;
  if (!lane_state_.Agreed()) {
    send_gate_.EndIfOver();
    LookForAnswer();
  }
  TryAdopt();
  errno = saved;
}

void Sock::SeekAfterCall() {
  const int saved = errno;
  StartSeek();
  errno = saved;
}

void Sock::StartSeek() {
  // What follows takes memory, which a handler must not.  Nor is anything ready
  // before the process is.  The next call asks again.
  if (!AloneToSeek() || InHandler() || !SeekGate::IsSet()) return;
  // Of several threads one begins.  Another thread wrote attempts_, at the end
  // of the previous look, before it let this thread begin.
  if (!lane_state_.Step(LaneState::Event::kSeek) || !MayAsk()) return;
  Critical critical;
  Reason why = Reason::kNone;
  Conductor* conductor = Conductor::Get(&why);
  if (conductor == nullptr) {
    RCSOCK_LOG(1, "fd %d: no lane: %s", fd(), base::ReasonKey(why));
    reason_ = why;
    lane_state_.Step(LaneState::Event::kStop);
    return;
  }
  Introduce(conductor);
  // While the stream looks again, the reason of its last look stands.
  if (attempts_ == 0) reason_ = Reason::kPending;
  RCSOCK_LOG(2, "fd %d: looking for its peer", fd());
  {
    // If a fork has given the look up meanwhile, the thread that began it may
    // still be here.
    Latched latched(this);
    remote_.sought_ns = base::NowNs();
    remote_.sought_bytes = calls_.bytes();
    remote_.queue = QueueOfThread();
    if (lane_state_.Hopeful()) lane_state_.Step(LaneState::Event::kHope);
  }
  switch (SeekGate::Get().MaySeek(Share(), conductor)) {
    case SeekGate::Answer::kMay:
      conductor->Seek(Share());
      break;
    case SeekGate::Answer::kLater:
      break;
    case SeekGate::Answer::kNotNow:
      SeekFailed(Reason::kNoMemory, false);
      break;
    case SeekGate::Answer::kNever:
      SeekFailed(Reason::kRawCalls, true);
      break;
  }
}

bool Sock::AloneToSeek() {
  if (holders_.Sole()) return true;
  // Another process may still use the connection: look again later.
  const Reason why = noted_.Travels() ? noted_.reason() : Reason::kPinnedFork;
  if (reason_ != why) {
    RCSOCK_LOG(1, "fd %d: no lane: %s", fd(), base::ReasonKey(why));
  }
  reason_ = why;
  TryAgainLater();
  noted_.AskForHolders();
  return false;
}

bool Sock::MayAsk() {
  if (attempts_ == 0 && !IsTcp(fd())) {
    // Another interposer behind this one has made another socket.
    reason_ = Reason::kPinnedSyscall;
    lane_state_.Step(mode() == Mode::kPlain ? LaneState::Event::kForbid
                                            : LaneState::Event::kStop);
    return false;
  }
  if (SeeksRdma() && !MayMeetFar() && !RoomForRemote()) {
    // An accepting end only waits, and is asked again when it has been found.
    reason_ = Reason::kBudget;
    TryAgainLater();
    lane_state_.Step(LaneState::Event::kGiveUp);
    return false;
  }
  return true;
}

void Sock::Introduce(Conductor* conductor) {
  static std::atomic<Conductor*> known{nullptr};
  if (known.exchange(conductor) == conductor) return;
  conductor->SetInspector(&TakeSnapshot);
  conductor->SetCompletionHandler([](const lane::Completion& completion) {
    static_cast<Sock*>(completion.cookie)->OnCompletion(completion.flags);
  });
  SeekGate::Get().Began(conductor);
  WatchSharedRings();
  KeepSpares();
}

bool Sock::Names(sockaddr_storage* local, sockaddr_storage* peer) {
  const rendezvous::BorrowedNumber number(this);
  return number >= 0 && rendezvous::NamesOf(number, local, peer);
}

int Sock::Descriptor() { return anchor_.Borrow(closed_); }

void Sock::DescriptorUsed() { anchor_.GiveBack(); }

std::uint8_t Sock::TrafficClass(bool v4) {
  const rendezvous::BorrowedNumber borrowed(this);
  const int number = borrowed;
  int value = 0;
  socklen_t length = sizeof value;
  if (number < 0 ||
      ::syscall(SYS_getsockopt, number, v4 ? IPPROTO_IP : IPPROTO_IPV6,
                v4 ? IP_TOS : IPV6_TCLASS, &value, &length) != 0) {
    return 0;
  }
  // The last two bits are TCP's own, for congestion.
  return static_cast<std::uint8_t>(value) & 0xfc;
}

void Sock::SeekFailed(Reason reason, bool final) {
  Critical critical;
  // This reason is no news if the last look had it, too.
  RCSOCK_LOG(reason != reason_ ? 1 : 2, "fd %d: no lane: %s", fd(),
             base::ReasonKey(reason));
  Latched latched(this);
  reason_ = reason;
  const bool remote = SeeksRdma();
  // A look that a guess had begun does not count among the five.
  const bool guessed = lane_state_.TakeAtOnce();
  lane_state_.SetHopeful(false);
  const bool again = !final && !lane_state_.Pinned() &&
                     !closed_.load(std::memory_order_relaxed);
  if (again && remote) {
    // A peer on another host may have its own limits, and a link its own
    // troubles.  So the peer is asked again for as long as the connection
    // lives, after ever more traffic.  The end that accepted only waits to be
    // asked, if it can; that costs nothing.  A stream that lacks nothing but
    // room may have it as soon as it earns it.
    if (attempts_ < 4 && reason != Reason::kBudget) ++attempts_;
    const bool waits = role_ == stream::Role::kAcceptor && !AtOnce(reason);
    const int shift = waits || attempts_ == 0 ? 0 : 2 * (attempts_ - 1);
    next_ops_ = calls_.count() + (terms_.promote_ops << shift);
    next_bytes_ = calls_.bytes() + (terms_.promote_bytes << shift);
    lane_state_.Step(LaneState::Event::kGiveUp);
  } else if (again && tally_.promoted()) {
    // The peer has had a lane here, so it runs under rcsock.  It may share its
    // end with a child for as long as the child lives.
    LookAfterAsMuch();
    lane_state_.Step(LaneState::Event::kGiveUp);
  } else if (attempts_ += guessed ? 0 : 1; again && attempts_ < 5) {
    // The peer may only have been slow, or be in no hurry: five looks in all.
    NextLook(calls_.count(), calls_.bytes());
    lane_state_.Step(LaneState::Event::kGiveUp);
  } else {
    // A pin may end; a last look does not.
    const bool never = mode() == Mode::kPlain && (final || attempts_ >= 5);
    lane_state_.Step(never ? LaneState::Event::kForbid
                           : LaneState::Event::kStop);
  }
  if (mode() == Mode::kEngine) {
    WakeRx();  // HoldsEnd
    PostSettle();
  }
  WakeHeld();
}

void Sock::CancelSeek() {
  if (!lane_state_.Seeking()) return;
  Critical critical;  // the conductor's latch
  SeekGate::Get().Forget(this);
  if (Conductor* conductor = Conductor::IfRunning()) conductor->Cancel(this);
  Latched latched(this);
  // A step of the search that runs at this moment finds it given up: TryAdopt
  // and LaneOpen look under the latches.
  EndSearchLatched();
  if (mode() == Mode::kEngine) WakeRx();  // HoldsEnd
  WakeHeld();
}

// A closed stream gets no other search.
void Sock::EndSearchLatched() {
  if (closed_.load()) {
    lane_state_.Step(LaneState::Event::kStop);
    return;
  }
  if (!lane_state_.Seeking()) return;
  TryAgainLater();
  lane_state_.Step(LaneState::Event::kGiveUp);
}

void Sock::Adopt() {
  {
    Latched latched(this);
    lane_state_.Step(LaneState::Event::kAgree);
  }
  if (mode() == Mode::kEngine) {
    // Another thread may be adopting the stream, and its registrations may
    // still be in the kernel's sets.  A lane that came before they have left
    // would ring no bell.  The thread that moves them says it then.
    Conductor* conductor = Conductor::IfRunning();
    if (conductor != nullptr && Registrations::InUser(this)) {
      conductor->Adopted(this);
    }
    return;
  }
  TryAdopt();
}

bool Sock::NobodyInside() const {
  return FenceCalls() && !calls_.Inside() && !CallIn(this);
}

// seq_cst: a call that enters the kernel marks or counts itself and then looks
// at mode_.  Here mode_ is set first, and marks and count are looked at after,
// with the fence of all threads between (thread/call_marks.h).  So one of the
// two sees the other (I-MARK-1).
Sock::Adoption Sock::TakeFromKernelLatched() {
  SetMode(Mode::kEngine);
  // A child that uses its copy counts itself, and then asks (I-CLAIM-1).
  claim_.Keep();
  const bool alone =
      NobodyInside() && holders_.Sole() && SeekGate::Get().MayAdopt();
  if (alone) holders_.HearMoved();
  Adoption result = Adoption::kNotYet;
  if (!alone || !noted_.TakeOffsets()) {
    // The last thread that comes out of the kernel tries again.
  } else if (OwnFace() == Face::kLibrary &&
             (UsedPastUs() || OptionsPin(fd()))) {
    lane_state_.Step(LaneState::Event::kPin);
    reason_ = Reason::kPinnedSyscall;
    result = Adoption::kNever;
  } else {
    stream_.Write(tx_latch, rx_latch)
        .reset(new (std::nothrow)
                   Stream(role_, &anchor_, stream::Limits{}, &quick_));
    if (stream_ != nullptr) {
      result = lane_state_.Step(LaneState::Event::kAdopt) ? Adoption::kDone
                                                          : Adoption::kNever;
    }
  }
  if (result == Adoption::kDone) {
    BeginEngineLatched();
  } else {
    SetMode(Mode::kPlain);
    claim_.Give();
  }
  return result;
}

void Sock::BeginEngineLatched() {
  stream_->Adopt(calls_.tx(), calls_.rx());
  anchor_.SetCame(0);
  options_.Take(fd());
  // What others have set meanwhile was not seen here.
  if (OwnFace() == Face::kLibrary || holders_.number() >= 0 ||
      noted_.Travels()) {
    LearnOptions(fd());
  }
  anchor_.SetInode(SocketInode(fd()));
  if (Conductor* conductor = Conductor::IfRunning()) {
    // Nothing is read yet.  Until the registrations have left the kernel's
    // epoll sets, these sets must see what is there.
    watch_.Begin(conductor, fd(), Share(), 0);
  }
}

bool Sock::TryAdopt() {
  Critical critical;
  Adoption result = Adoption::kNotYet;
  {
    Latched latched(this);
    if (lane_state_.state() == LaneState::State::kAgreed &&
        mode() == Mode::kPlain) {
      // The peer is not to wait for an adoption that does not come.
      if (lane_state_.Pinned() || half_closed_ || !holders_.Sole() ||
          !SeekGate::Get().MayAdopt()) {
        result = Adoption::kNever;
      } else if (!closed_.load(std::memory_order_relaxed)) {
        result = TakeFromKernelLatched();
      }
    }
  }
  if (result == Adoption::kNever) CancelSeek();
  if (result != Adoption::kDone || Conductor::IfRunning() == nullptr) {
    return false;
  }
  if (Registrations::Get().ToUser(this)) {
    Moved();
  } else {
    // Until then the kernel's sets see what is there, and threads that sleep
    // here are told, too.  The application reads, and nothing is read ahead.
    Latched latched(this);
    if (mode() == Mode::kEngine && stream_ != nullptr) UpdateWatch();
  }
  return true;
}

void Sock::Moved() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool adopted = mode() == Mode::kEngine && stream_ != nullptr;
  if (adopted) UpdateWatch();
  rx_latch.unlock();
  tx_latch.unlock();
  // The stream may have gone back meanwhile, and be on its way here anew.
  Conductor* conductor = Conductor::IfRunning();
  if (adopted && conductor != nullptr && Registrations::InUser(this)) {
    conductor->Adopted(this);
  }
}

void Sock::OnLink(std::shared_ptr<lane::shm::Link> link, int index) {
  Latched latched(this);
  link = notice_.Join(std::move(link), index);
}

void Sock::LaneOpen(std::unique_ptr<lane::Lane> lane, std::uint32_t epoch,
                    const stream::Nonce& mine, const stream::Nonce& peers,
                    bool authenticated) {
  // No latch of a stream is held here: fork takes them behind what this takes.
  GuardFaults();
  Critical critical;
  {
    Latched latched(this);
    if (MayOpenLatched()) {
      OpenLatched(std::move(lane), {epoch, mine, peers, authenticated});
      return;
    }
    EndSearchLatched();
    if (mode() == Mode::kEngine && stream_ != nullptr && lane_ == nullptr) {
      WakeRx();  // HoldsEnd
      PostSettle();
    }
    WakeHeld();
  }
  Stream::Refuse(lane.get(), epoch);
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->ReturnLane(Share(), std::move(lane));
  }
}

// WayBack::AwaitsLane: the lane is left as soon as it has come, before the
// thread that waits for that goes on.  A fork, for instance, makes no child
// before.
bool Sock::MayOpenLatched() {
  const bool alone =
      lane_state_.Leaving() ? holders_.SoleBeforeFork() : holders_.Sole();
  // kOpen succeeds if the lane is still sought, and the stream is not pinned,
  // unless it leaves.
  return mode() == Mode::kEngine && stream_ != nullptr &&
         !closed_.load(std::memory_order_relaxed) && lane_ == nullptr &&
         alone && lane_state_.Step(LaneState::Event::kOpen);
}

void Sock::OpenLatched(std::unique_ptr<lane::Lane> lane, const Opening& by) {
  lane_.Write(tx_latch, rx_latch) = std::move(lane);
  lane_is_shm_.Write(tx_latch, rx_latch) = lane_->kind() == lane::Kind::kShm;
  next_line.store(&next_line, std::memory_order_relaxed);
  if (lane_is_shm_) {
    static_cast<lane::shm::ShmLane*>(lane_.get())->KeepHint(&next_line);
  }
  lane_kind_ = lane_->kind();
  lane_epoch_ = by.epoch;
  attempts_ = 0;
  if (lane_kind_ == lane::Kind::kRdma) {
    notice_.TakeLink();
    // The reason stands until the switch, which may never come if one end does
    // not send.
    if (!by.authenticated && !tally_.promoted()) reason_ = Reason::kUnproven;
    static_cast<lane::rdma::RdmaLane*>(lane_.get())->SetCookie(this);
    ListRemote();
  }
  notice_.Begin(lane_.get());
  BoundSendsLatched();
  // During the switch the conductor takes the control messages.
  notice_.Tell(
      lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller, 0);
  RCSOCK_LOG(2, "fd %d: lane open, epoch %u", fd(), by.epoch);
  // Rule 2.  A peer that answers on an unauthenticated lane must also know more
  // of the connection than any program on its host can see.
  constexpr std::uint8_t kMinTail = 16;
  stream_->LaneUp(lane_.get(), by.epoch, by.mine, by.peers,
                  by.authenticated || role_ == stream::Role::kConnector,
                  by.authenticated ? std::uint8_t{0} : kMinTail);
  if (lane_state_.Leaving()) stream_->Demote(way_back_.why(), true);
  stream_->Progress();
  HandleChanges();
  send_gate_.LaneCame(remote_.sought_ns);
  WakeRx();  // HoldsEnd
  WakeHeld();
}

}  // namespace rcsock::posix
