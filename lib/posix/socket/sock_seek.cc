// How a stream comes onto a lane: what it answers the conductor, the adoption,
// the lane.

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
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_settings.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/call_marks.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/address.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;
using stream::Stream;

// The look for other calls may be wrong either way here.  TryAdopt looks again,
// and a call that is inside comes here itself.  Of two calls that come out at
// once one sees the other's mark gone, since each has cleared its own mark
// before this fence.  A call that was inside when TryAdopt looked finds the
// stream wanted.
void Sock::LastOut() {
  base::FullFence();
  if (calls_.Inside() || CallIn(this)) return;
  const int saved = errno;
  if (!lane_state_.Agreed()) {
    send_gate_.EndIfOver();
    search_.LookForAnswer();
  }
  TryAdopt();
  errno = saved;
}

bool Sock::Names(sockaddr_storage* local, sockaddr_storage* peer) {
  const rendezvous::BorrowedNumber number(this);
  return number >= 0 && rendezvous::NamesOf(number, local, peer);
}

int Sock::Descriptor() { return anchor_.Borrow(); }

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
  // This reason is no news if the last search had it, too.
  RCSOCK_LOG(reason != search_.reason() ? 1 : 2, "fd %d: no lane: %s", fd(),
             base::ReasonKey(reason));
  Latched latched(this);
  search_.FailedLatched(reason, final);
  if (mode() == Mode::kEngine) {
    Wake(false);  // HoldsEnd
    settling_.Post();
  }
  send_gate_.Wake();
}

void Sock::Adopt() {
  {
    Latched latched(this);
    if (lane_state_.Step(LaneState::Event::kAgree)) anchor_.EndHolding();
  }
  if (mode() == Mode::kEngine) {
    // Another thread may be adopting the stream, and its registrations may
    // still be in the kernel's sets.  A lane that came before they have left
    // would ring no bell.  The thread that moves the registrations tells the
    // conductor then.
    SayAdopted();
    return;
  }
  TryAdopt();
}

// seq_cst: a call that enters the kernel marks or counts itself and then looks
// at mode_.  This thread sets mode_ first, and looks at marks and count after,
// with the fence of all threads between (thread/call_marks.h).  So one of the
// two threads sees the other (I-MARK-1).
Sock::Adoption Sock::TakeFromKernelLatched() {
  SetMode(Mode::kEngine);
  // A child that uses its copy counts itself, and then asks (I-CLAIM-1).
  claim_.Keep();
  const bool alone =
      NobodyInside(this) && holders_.Sole() && SeekGate::Get().MayAdopt();
  if (alone) holders_.HearMoved();
  Adoption result = Adoption::kNotYet;
  if (!alone || !noted_.TakeOffsets()) {
    // The last thread that comes out of the kernel tries again.
  } else if (OwnFace() == Face::kLibrary &&
             (UsedPastUs() || OptionsPin(fd()))) {
    lane_state_.Step(LaneState::Event::kPin);
    search_.SetReason(Reason::kPinnedSyscall);
    result = Adoption::kNever;
  } else {
    stream_.Write(tx_latch, rx_latch)
        .reset(new (std::nothrow)
                   Stream(peer_.role(), &anchor_, stream::Limits{}, &quick_));
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
    Settings(this).Learn(fd());
  }
  anchor_.SetInode(SocketInode(fd()));
  if (Conductor* conductor = Conductor::IfRunning()) {
    // Nothing is read yet.  Until the registrations have left the kernel's
    // epoll sets, these sets must see what is there.
    watch_.Begin(conductor, fd(), Share(this), 0);
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
      if (lane_state_.Pinned() || way_back_.half_closed() || !holders_.Sole() ||
          !SeekGate::Get().MayAdopt()) {
        result = Adoption::kNever;
      } else if (!ending_.closed()) {
        result = TakeFromKernelLatched();
      }
    }
  }
  if (result == Adoption::kNever) search_.Cancel();
  if (result != Adoption::kDone || Conductor::IfRunning() == nullptr) {
    return false;
  }
  if (Registrations::Get().ToUser(this)) {
    Moved();
  } else {
    // Until the registrations have moved, the kernel's sets see what is there,
    // and threads that sleep here are told, too.  The application reads, and
    // nothing is read ahead.
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
  // Of these the kernel knows nothing, and no edge was made before the move.
  if (adopted && (rd_shut_ || Completions())) Registrations::Ready(this);
  rx_latch.unlock();
  tx_latch.unlock();
  // The stream may have gone back meanwhile, and be on its way here anew.
  if (adopted) SayAdopted();
}

void Sock::SayAdopted() {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  {
    Latched latched(this);
    if (mode() != Mode::kEngine || !Registrations::InUser(this)) return;
    anchor_.BeginHolding();
  }
  conductor->Adopted(this);
}

void Sock::OnLink(std::shared_ptr<lane::shm::Link> link, int index) {
  Latched latched(this);
  link = notice_.Join(std::move(link), index);
}

void Sock::LaneOpen(std::unique_ptr<lane::Lane> lane, std::uint32_t epoch,
                    const stream::Nonce& mine, const stream::Nonce& peers,
                    bool authenticated) {
  // No latch of a stream is held here: fork takes these behind what GuardFaults
  // takes.
  GuardFaults();
  Critical critical;
  {
    Latched latched(this);
    if (MayOpenLatched()) {
      OpenLatched(std::move(lane), {epoch, mine, peers, authenticated});
      return;
    }
    search_.EndLatched();
    if (mode() == Mode::kEngine && stream_ != nullptr && lane_ == nullptr) {
      Wake(false);  // HoldsEnd
      settling_.Post();
    }
    send_gate_.Wake();
  }
  Stream::Refuse(lane.get(), epoch);
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->ReturnLane(Share(this), std::move(lane));
  }
}

// A thread in WayBack::AwaitsLane has the stream leave its lane as soon as the
// lane has come, and goes on only then.  A fork, for instance, makes no child
// before.
bool Sock::MayOpenLatched() {
  const bool alone =
      lane_state_.Leaving() ? holders_.SoleBeforeFork() : holders_.Sole();
  // kOpen succeeds if the lane is still sought, and the stream is not pinned,
  // unless it leaves.
  return mode() == Mode::kEngine && stream_ != nullptr && !ending_.closed() &&
         lane_ == nullptr && alone && lane_state_.Step(LaneState::Event::kOpen);
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
  search_.ForgetAttempts();
  if (lane_kind_ == lane::Kind::kRdma) {
    notice_.TakeLink();
    // The reason stands until the switch, which may never come if one end does
    // not send.
    if (!by.authenticated && !tally_.promoted()) {
      search_.SetReason(Reason::kUnproven);
    }
    static_cast<lane::rdma::RdmaLane*>(lane_.get())->SetCookie(this);
    remote_.List();
  }
  notice_.Begin(lane_.get());
  Settings(this).BoundSendsLatched();
  // During the switch the conductor takes the control messages.  A lane of
  // shared memory has had this wish since before the peer could post
  // (Session::Adopted).
  constexpr std::uint32_t kAll =
      lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller;
  if (lane_is_shm_ && notice_.bell() == 0) {
    notice_.Wish(kAll);
  } else {
    notice_.Tell(kAll, 0);
  }
  RCSOCK_LOG(2, "fd %d: lane open, epoch %u", fd(), by.epoch);
  // Rule 2.  A peer that answers on an unauthenticated lane must also know more
  // of the connection than any program on its host can see.
  constexpr std::uint8_t kMinTail = 16;
  // On shared memory the connecting end proposes as soon as it has the lane.  A
  // second proposal would only have to be withdrawn.
  const bool may_propose =
      !peer_.accepted() || (by.authenticated && !lane_is_shm_);
  stream_->LaneUp(lane_.get(), by.epoch, by.mine, by.peers, may_propose,
                  by.authenticated ? std::uint8_t{0} : kMinTail);
  if (lane_state_.Leaving()) stream_->Demote(way_back_.why(), true);
  stream_->Progress();
  HandleChanges();
  send_gate_.LaneCame(remote_.sought_ns());
  // HoldsEnd.  The look costs less than waking a thread in vain.
  if (anchor_.Ended()) Wake(false);
  send_gate_.Wake();
}

}  // namespace rcsock::posix
