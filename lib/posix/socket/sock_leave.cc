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
#include "lib/base/sleep.h"
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
// The wait for a lane that both ends have agreed to.  The peer's threads may
// have to come out of the kernel first.  If they are late, the peer has written
// nothing to the lane either.
constexpr std::uint64_t kMostAwaitNs = 20'000'000;

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
    slept_on = LanePins().load(std::memory_order_seq_cst) != 0;
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
  if (link_ != nullptr) link_->SetCookie(index_, nullptr);
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
  WantSource(false);
  source_.store(nullptr, std::memory_order_release);
  UnlistRemote();
  std::unique_ptr<lane::Lane> lane = std::move(lane_.Write(tx_latch, rx_latch));
  lane_is_shm_.Write(tx_latch, rx_latch) = false;
  notify_.store(0);
  if (!slept_on) return lane;
  parked_.Write(tx_latch, rx_latch) = std::move(lane);
  lane_pins_.Write(tx_latch, rx_latch) ^= 1;
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
    if (pins_[lane_pins_ ^ 1].load(std::memory_order_seq_cst) != 0) {
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
  Spoil();
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
  tx_raw_.store(stream_->tx_off(), std::memory_order_relaxed);
  rx_raw_.store(stream_->rx_off(), std::memory_order_relaxed);
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
  if (std::exchange(starved_, false) && !spilled) {
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
  next_ops_ = ops() + (terms_.promote_ops << shift);
  next_bytes_ = RawBytes() + (terms_.promote_bytes << shift);
}

// The peer may already have the lane that this end has agreed to, and write to
// it.  An end that left before its lane comes would not see what a dying peer
// had put there.  So the lane comes, and is left.
bool Sock::AwaitsLane(Reason reason) {
  if (!lane_state_.Agreed() || SeeksRemote()) return false;
  Latched latched(this);
  if (mode() != Mode::kEngine || stream_ == nullptr || lane_ != nullptr ||
      closed_.load(std::memory_order_relaxed)) {
    return false;
  }
  const std::uint64_t now = base::NowNs();
  if (lane_state_.Step(LaneState::Event::kLeave)) {
    leaving_since_ns_ = now;
    leaving_why_ = reason;
  }
  return now - leaving_since_ns_ < kMostAwaitNs;
}

bool Sock::StepToPlain(Reason reason) {
  if (Engaged()) {
    if (AwaitsLane(reason)) return false;
    CancelSeek();
    {
      Latched latched(this);
      if (mode() == Mode::kEngine && stream_ != nullptr) {
        lane_state_.Step(LaneState::Event::kLeave);
        stream_->Demote(reason, true);
        stream_->Progress();
        HandleChanges();
      }
    }
    if (mode() == Mode::kEngine) BackToPlain();
  }
  return mode() != Mode::kEngine;
}

std::uint64_t LeaveDeadline() { return base::NowNs() + 1'600'000'000; }

bool Sock::ToPlain(Reason reason, std::uint64_t deadline_ns) {
  if (deadline_ns == 0) deadline_ns = LeaveDeadline();
  for (int i = 0;; ++i) {
    if (StepToPlain(reason)) return true;
    if (StuckOnStash() || base::NowNs() >= deadline_ns) break;
    // The peer's background thread answers within a round trip or two.
    base::SleepThrough(i < 50 ? 100'000 : 10'000'000);
  }
  StopLeaving();
  return mode() != Mode::kEngine;
}

void Sock::StopLeaving() {
  Latched latched(this);
  lane_state_.Step(LaneState::Event::kStopLeaving);
}

// Returns whether only bytes that were read ahead hold the stream.  There was
// no memory to share them in.
bool Sock::StuckOnStash() {
  Latched latched(this);
  const bool stuck = mode() == Mode::kEngine && stream_ != nullptr &&
                     lane_ == nullptr && stream_->OnlyStash();
  return stuck;
}

void Sock::KeepPlain() { lane_state_.Step(LaneState::Event::kPin); }

void Sock::LeaveForGood(Reason reason) {
  Spoil();
  KeepPlain();
  StepToPlain(reason);
}

bool Sock::Pin(Reason reason, std::uint64_t deadline_ns) {
  Spoil();
  return PinHere(reason, deadline_ns);
}

bool Sock::PinHere(Reason reason, std::uint64_t deadline_ns) {
  if (!lane_state_.Pinned() && connected_.load(std::memory_order_relaxed)) {
    RCSOCK_LOG(1, "fd %d: stays on TCP: %s", fd(), base::ReasonKey(reason));
  }
  KeepPlain();
  const bool ok = ToPlain(reason, deadline_ns);
  reason_ = reason;
  return ok;
}

}  // namespace rcsock::posix
