// How a stream leaves its lane and goes back to the kernel.

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;
using stream::Stream;

// The most between two looks whether threads still sleep on a lane.
constexpr std::uint32_t kMostWaitMs = 64;

void Sock::PostSettle() {
  if (settle_posted_) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  settle_posted_ = conductor->Post([self = Share()] { self->Settle(); });
}

void Sock::Settle() {
  Critical critical;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  bool finished;
  bool reset;
  bool settled;
  {
    Latched latched(this);
    settle_posted_ = false;
    // A later change has posted another call.
    finished = finished_;
    reset = reset_;
    settled = settled_ || finished;
  }
  if (settled && lane_ != nullptr) {
    Registrations::Get().Refresh(this, true);
    if (!GiveLaneBack(conductor)) return;
  }
  if (finished) {
    Finish(reset);
    return;
  }
  BackToPlain();
}

bool Sock::GiveLaneBack(Conductor* conductor) {
  std::unique_ptr<lane::Lane> lane;
  bool slept_on;
  std::uint32_t wait = 0;
  {
    Latched latched(this);
    slept_on = sleepers_.AnyOnLane();
    if (slept_on && parked_ != nullptr) {
      // Threads sleep on two lanes: a handler sleeps above another's sleep, for
      // instance.
      lane_->WakeLocal();
      settle_posted_ = true;
      wait = settle_wait_ms_;
      if (wait < kMostWaitMs) settle_wait_ms_ = 2 * wait;
    } else {
      lane = TakeLaneLatched(slept_on);
    }
  }
  if (wait != 0) {
    Unpark();
    if (conductor->After(wait, [self = Share()] { self->Settle(); }) == 0) {
      // No memory: the next change tries again.
      Latched latched(this);
      settle_posted_ = false;
    }
    return false;
  }
  notice_.Unreport();
  if (!slept_on) {
    conductor->ReturnLane(Share(), std::move(lane));
  } else if (!Unpark()) {
    UnparkLater(1);
  }
  return true;
}

std::unique_ptr<lane::Lane> Sock::TakeLaneLatched(bool slept_on) {
  settle_wait_ms_ = 1;
  stream_->ReleaseLane();
  settled_ = false;
  notice_.End();
  UnlistRemote();
  std::unique_ptr<lane::Lane> lane = std::move(lane_.Write(tx_latch, rx_latch));
  lane_is_shm_.Write(tx_latch, rx_latch) = false;
  if (!slept_on) return lane;
  parked_.Write(tx_latch, rx_latch) = std::move(lane);
  sleepers_.Park(tx_latch, rx_latch);
  return nullptr;
}

// The stream need not wait for these threads.  Nothing is read from the lane
// any more, and a thread that wakes looks where the stream is by then.  Nor
// could the stream wait.  A handler may have interrupted the sleep of its
// thread, and wait itself until the kernel has the stream (fork).  Or it has
// jumped out of the sleep, and takes its time.
bool Sock::Unpark() {
  std::unique_ptr<lane::Lane> lane;
  {
    Latched latched(this);
    if (parked_ == nullptr) return true;
    if (sleepers_.AnyOnParked()) {
      parked_->WakeLocal();
      return false;
    }
    lane = std::move(parked_.Write(tx_latch, rx_latch));
  }
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->ReturnLane(Share(), std::move(lane));
  }
  return true;
}

// Without memory for the timer, the lane goes back when the stream leaves its
// next lane.
void Sock::UnparkLater(std::uint32_t ms) {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->After(ms, [self = Share(), ms] {
    if (!self->Unpark()) {
      self->UnparkLater(ms < kMostWaitMs ? 2 * ms : kMostWaitMs);
    }
  });
}

// A stream that is half closed in the kernel may not be promoted any more: the
// switch would take that end for the end of the peer (rule 1).
void Sock::HalfClosed() {
  holders_.Spoil();
  half_closed_.Write(tx_latch, rx_latch) = true;
  lane_state_.Step(LaneState::Event::kPin);
}

bool Sock::IsHalfClosed() {
  Latched latched(this);
  return half_closed_;
}

bool Sock::BackToPlain() {
  Critical critical;
  {
    Latched latched(this);
    bool spilled = false;
    if (!LeavesEngineLatched(&spilled)) return false;
    LeaveEngineLatched(spilled);
  }
  Registrations::Get().ToKernel(this);
  Latched latched(this);
  claim_.Give();
  WakeRx();
  WakeTx();
  return true;
}

// What the application has been told must stay true: a peer that exits with a
// frame unread resets the anchor behind the end, too.
bool Sock::LeavesEngineLatched(bool* spilled) {
  if (mode() != Mode::kEngine || stream_ == nullptr || lane_ != nullptr ||
      closed_.load(std::memory_order_relaxed) || lane_state_.Seeking()) {
    return false;
  }
  if (!stream_->Idle())
    return *spilled = lane_state_.Leaving() && SpillLatched();
  return lane_state_.Leaving() ||
         !(stream_->TxBroken() || stream_->EndedInOrder());
}

void Sock::LeaveEngineLatched(bool spilled) {
  Conductor* conductor = Conductor::IfRunning();
  calls_.SetMoved(stream_->tx_off(), stream_->rx_off());
  watch_.End(conductor, fd());
  if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
  timer_ = 0;
  options_.Push(fd());
  noted_.MeasureDrift();
  // The kernel has not been told of these.  It would let a reader sleep.  It
  // would also hide that the stream is over, if only this end's last write
  // would show that.
  if (rd_shut_ || stream_->Gone()) {
    ::syscall(SYS_shutdown, fd(), stream_->Gone() ? SHUT_RDWR : SHUT_RD);
  }
  // The next Stream would not know of the half close.
  if (rd_shut_ || stream_->Shut() || (stream_->Readiness() & POLLRDHUP) != 0) {
    HalfClosed();
  }
  quick_.may_send = quick_.may_receive = false;
  NoteOnLane(fd(), this, false);
  if (starvation_.TakeLeft() && !spilled) {
    JudgeSoon({stream_->tx_off(), stream_->tx_off()});
  }
  SetMode(spilled ? Mode::kUnread : Mode::kPlain);
  // A stream in kUnread is not adopted while the offset of what TCP brings is
  // ahead of the application's.  EndUnreadLatched allows it again.
  if (spilled || lane_state_.Pinned() || (attempts_ >= 5 && !SeeksRdma())) {
    lane_state_.Step(LaneState::Event::kStay);
    return;
  }
  LookAfterLeaving();
  lane_state_.Step(LaneState::Event::kReturn);
}

// Each demotion makes the next promotion eight times as far away.
void Sock::LookAfterLeaving() {
  std::uint32_t shift = 3 * (demotions_ < 6 ? demotions_ : 6);
  if (SeeksRdma()) {
    shift = role_ == stream::Role::kAcceptor ? 0
            : demotions_ < 4                 ? 2 * demotions_
                                             : 8;
  }
  next_ops_ = calls_.count() + (terms_.promote_ops << shift);
  next_bytes_ = calls_.bytes() + (terms_.promote_bytes << shift);
}

}  // namespace rcsock::posix
