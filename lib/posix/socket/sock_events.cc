// What a stream is told by its connection, its lane and its timers, and what it
// passes on to threads, registrations and the conductor.

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "lib/base/log.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;
using stream::Stream;

void Sock::OnAnchor(std::uint32_t events) {
  Latched latched(this);
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    if ((events & ~EPOLLIN) != 0 && watch_.TakeWantRoom()) Wake(true);
    if (stream_->AtKernel() && (events & ~EPOLLOUT) != 0) Wake(false);
    if ((events & EPOLLERR) != 0) zero_copy_.TakeErrors();
    stream_->Progress();
    HandleChanges();
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 && !stream_->WantsAnchorRead() &&
        !stream_->AtKernel()) {
      // HUP and ERR are level-triggered and cannot be masked.
      watch_.End(Conductor::IfRunning(), fd());
    }
  }
}

void Sock::OnCompletion() {
  Latched latched(this);
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Progress();
    HandleChanges();
    if (lane_ != nullptr) {
      WakeThreads(false);
      WakeThreads(true);
      TellLatched(true, true);
    }
  }
}

void Sock::LinkLost(Reason reason) {
  (void)reason;  // the lane's State() says it
  OnCompletion();
}

void Sock::OnTimer() {
  Latched latched(this);
  timer_ = 0;
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Timer();
    stream_->Progress();
    HandleChanges();
  }
}

namespace {

// How long a switch may take, in a process and on a host as busy as they are.
// All switches under way share their conductors.  Each step of a switch waits
// for threads that hold the stream's latches and have lost their CPU.  Any
// thread may call it.
class Patience {
 public:
  constexpr Patience(std::uint32_t least_ms, std::uint32_t most_ms)
      : least_ms_(least_ms), most_ms_(most_ms), ms_(least_ms) {}
  std::uint32_t ms() const { return ms_.load(std::memory_order_relaxed); }
  void Lost() {
    ms_.store(std::min(2 * ms(), most_ms_), std::memory_order_relaxed);
  }
  void Kept() {
    ms_.store(std::max(ms() * 63 / 64, least_ms_), std::memory_order_relaxed);
  }

 private:
  const std::uint32_t least_ms_;
  const std::uint32_t most_ms_;
  std::atomic<std::uint32_t> ms_;
};

constinit Patience shm_patience(300, 4000);
constinit Patience rdma_patience(2000, 8000);

Patience& PatienceFor(lane::Kind kind) {
  return kind == lane::Kind::kRdma ? rdma_patience : shm_patience;
}

}  // namespace

void Sock::HandleChanges() {
  CheckQuick();
  const std::uint32_t changes = stream_->TakeChanges();
  if (changes != 0) {
    RCSOCK_LOG(2, "fd %d: changes %x, tx %d rx %d, offsets %llu %llu", fd(),
               changes, static_cast<int>(stream_->tx()),
               static_cast<int>(stream_->rx()),
               static_cast<unsigned long long>(stream_->tx_off()),
               static_cast<unsigned long long>(stream_->rx_off()));
  }
  if (changes & (stream::kPromotedTx | stream::kPromotedRx)) OnPromoted();
  if (changes & stream::kLeftLane) OnLeftLane();
  const bool rx = (changes & stream::kRxReady) != 0;
  const bool tx = (changes & stream::kTxReady) != 0;
  if (rx) WakeThreads(false);
  if (tx) WakeThreads(true);
  if (rx && stream_->rx() != stream::Rx::kFrames) {
    Registrations::Ready(this);  // the kernel may have something, too
  } else if (rx || tx) {
    TellLatched(rx, tx);
  }
  SetTimer(changes);
  if (changes & stream::kMustReset) ending_.SetReset();
  if (changes & stream::kFinished) ending_.SetFinished();
  if (changes & stream::kSettled) {
    settling_.LaneIsFree();
    if (std::exchange(leave_uncounted_, false)) {
      search_.SetReason(stream_->why_left());
      CountLeave(true);
    }
  }
  if (changes & (stream::kSettled | stream::kFinished)) settling_.Post();
  UpdateWatch();
}

// Both directions are ready then, which HandleChanges tells.
void Sock::OnPromoted() {
  tally_.Promoted();
  search_.SetReason(Reason::kNone);
  if (on_lane_.load(std::memory_order_relaxed) || !stream_->FastTx() ||
      stream_->rx() != stream::Rx::kFrames) {
    return;
  }
  RCSOCK_LOG(1, "fd %d: promoted to %s", fd(),
             lane_kind_ == lane::Kind::kRdma ? "rdma" : "shm");
  on_lane_.store(true, std::memory_order_release);
  input_alone_.store(!stream_->Shut(), std::memory_order_release);
  if (lane_is_shm_) NoteOnLane(fd(), this, true);
  tally_.CameOnLane();
  PatienceFor(lane_kind_).Kept();
  Registrations::Get().NotifyLatched(this);
}

void Sock::OnLeftLane() {
  const bool was_there = on_lane_.exchange(false, std::memory_order_release);
  input_alone_.store(false, std::memory_order_release);
  Registrations::Get().Refresh(this, false);
  Reason reason = search_.reason();
  if (tally_.promoted() || reason != Reason::kUnproven || stream_->Tried()) {
    reason = stream_->why_left();
    // The stream was closed before the switch, and has no reason of its own.
    if (reason == Reason::kNone && !tally_.promoted())
      reason = Reason::kShortLived;
    search_.SetReason(reason);
  }
  starvation_.SetLeft(reason == Reason::kStarved);
  // A stream that made room for others is as welcome as before.  The end whose
  // limit it was asks for that.
  if (lane_kind_ == lane::Kind::kRdma) remote_.Leaves();
  if (reason == Reason::kTimeout) PatienceFor(lane_kind_).Lost();
  // Whether the peer has left or the lane has failed is known for certain when
  // the stream is back on TCP: see Stream::OnLaneDown.
  leave_uncounted_ =
      lane_kind_ == lane::Kind::kRdma &&
      (reason == Reason::kPeerGone || reason == Reason::kLaneError);
  if (!leave_uncounted_) CountLeave(was_there);
  // A stream that the program has closed has a number of rcsock's.
  RCSOCK_LOG(ending_.closed() ? 2 : 1, "fd %d: left its lane: %s", fd(),
             base::ReasonKey(reason));
}

// Rule 23: for liveness only; any value is safe.
void Sock::SetTimer(std::uint32_t changes) {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  if ((changes & stream::kTimerOff) && timer_ != 0) {
    conductor->CancelTimer(timer_);
    timer_ = 0;
  }
  if ((changes & stream::kTimerOn) && timer_ == 0) {
    timer_ = conductor->After(PatienceFor(lane_kind_).ms(),
                              [self = Share(this)] { self->OnTimer(); });
  }
}

void Sock::CountLeave(bool was_there) {
  const Reason reason = search_.reason();
  // None of these reasons speaks against the next lane.  Nor does a connection
  // that another process shares for a while: a server may fork for each
  // snapshot.
  const bool makes_room =
      reason == Reason::kIdleRings || reason == Reason::kPinnedFork ||
      reason == Reason::kPeerShared ||
      (lane_kind_ == lane::Kind::kRdma &&
       (reason == Reason::kBudget || reason == Reason::kPeerDemoted));
  // The reason is the sender's.  The sender learns whether the departure was of
  // use (Starvation), and proposes again, sooner or later.
  const bool starves = !makes_room && reason == Reason::kPeerDemoted &&
                       lane_ != nullptr && lane_->HalfFull();
  // The switch was too slow, at this end or the other.  The next one has more
  // time (Patience), which also bounds how often a switch is tried.
  const bool slow = reason == Reason::kTimeout ||
                    (reason == Reason::kPeerDemoted && !was_there);
  if (!makes_room && !starves && !slow) tally_.CountDemotion();
  if (tally_.promoted() && !ending_.closed() &&
      (stream_->Readiness() & (POLLRDHUP | POLLHUP)) == 0) {
    tally_.LeftLane(stream::IsFailover(reason));
  }
}

void Sock::UpdateWatch() {
  Conductor* conductor = Conductor::IfRunning();
  if (!watch_.on() || conductor == nullptr) return;
  std::uint32_t wanted =
      watch_.wants_room() || stream_->WantsAnchorWrite() ? EPOLLOUT : 0u;
  if (stream_->WantsAnchorRead()) {
    wanted |= EPOLLIN;
  } else if (stream_->AtKernel()) {
    // The application reads when it likes.  A thread that waits for input here,
    // or for an edge, is told of each arrival as the kernel would.  Nothing is
    // lost: the change of the registration reports what is there already, and
    // all that is done for EPOLLOUT ends with EAGAIN.
    wanted |=
        EPOLLIN | EPOLLPRI | EPOLLRDHUP | static_cast<std::uint32_t>(EPOLLET);
  }
  watch_.Change(conductor, fd(), wanted);
}

void Sock::Wake(bool tx) {
  WakeThreads(tx);
  using Edge = Registrations::Edge;
  Registrations::Ready(this, tx ? Edge::kRoom : Edge::kAny);
}

void Sock::WakeThreads(bool tx) {
  sleepers_.Wake(tx);
  if (lane_ != nullptr && sleepers_.AnyOnLane()) lane_->WakeLocal();
  notice_.KickPollers();
}

// A program cannot see most changes of a switch.  To wake a thread for each of
// them would cost as much as the switch itself.  Who waits for room of a full
// lane looks at it, since that look has the receiver watched (Starvation).
// Likewise where the end is known: the bytes before it may be under way yet,
// and a wait no longer looks at the ring by itself.
void Sock::TellLatched(bool rx, bool tx) {
  if (stream_->rx() == stream::Rx::kFrames && !stream_->FastRx()) {
    Registrations::Ready(this);
    return;
  }
  const std::uint32_t ready = stream_->Readiness();
  const std::uint32_t asked =
      rx ? ~std::uint32_t{POLLOUT} : std::uint32_t{POLLERR | POLLHUP};
  if ((ready & asked) != 0) {
    Registrations::Ready(this);
  } else if (tx && ((ready & POLLOUT) != 0 || stream_->FastTx())) {
    Registrations::Ready(this, Registrations::Edge::kRoomAsked);
  }
}

}  // namespace rcsock::posix
