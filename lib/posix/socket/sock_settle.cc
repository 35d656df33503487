#include "lib/posix/socket/sock_settle.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using rendezvous::Conductor;

// The longest time between two looks whether threads still sleep on a lane.
constexpr std::uint32_t kMostWaitMs = 64;

void Settling::Post() {
  latches_.AssertHeld();
  if (posted_) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  posted_ =
      conductor->Post([self = Share(sock_)] { self->settling().Settle(); });
}

void Settling::Settle() {
  Critical critical;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  bool finished;
  bool reset;
  bool settled;
  {
    Latched latched(sock_);
    latches_.AssertHeld();
    posted_ = false;
    // A change that comes after this posts another call.
    finished = sock_->ending().finished();
    reset = sock_->ending().resets();
    settled = free_ || finished;
  }
  if (settled && sock_->lane() != nullptr) {
    Registrations::Get().Refresh(sock_, true);
    if (!GiveLaneBack(conductor)) return;
  }
  if (finished) {
    sock_->ending().Finish(reset);
    return;
  }
  sock_->BackToPlain();
}

bool Settling::GiveLaneBack(Conductor* conductor) {
  std::unique_ptr<lane::Lane> lane;
  bool slept_on;
  std::uint32_t wait = 0;
  {
    Latched latched(sock_);
    latches_.AssertHeld();
    slept_on = sock_->sleepers().AnyOnLane();
    if (slept_on && parked_ != nullptr) {
      // Threads sleep on two lanes: a handler sleeps above another's sleep, for
      // instance.
      sock_->lane()->WakeLocal();
      posted_ = true;
      wait = wait_ms_;
      if (wait < kMostWaitMs) wait_ms_ = 2 * wait;
    } else {
      lane = TakeLane(slept_on);
    }
  }
  if (wait != 0) {
    Unpark();
    if (conductor->After(
            wait, [self = Share(sock_)] { self->settling().Settle(); }) == 0) {
      // No memory: the next change tries again.
      Latched latched(sock_);
      latches_.AssertHeld();
      posted_ = false;
    }
    return false;
  }
  sock_->notice().Unreport();
  if (!slept_on) {
    conductor->ReturnLane(Share(sock_), std::move(lane));
  } else if (!Unpark()) {
    UnparkLater(1);
  }
  return true;
}

std::unique_ptr<lane::Lane> Settling::TakeLane(bool slept_on) {
  latches_.AssertHeld();
  AssertLatched(sock_);
  wait_ms_ = 1;
  free_ = false;
  std::unique_ptr<lane::Lane> lane = sock_->TakeLane();
  if (!slept_on) return lane;
  parked_.Write(latches_.tx, latches_.rx) = std::move(lane);
  sock_->sleepers().Park(latches_.tx, latches_.rx);
  return nullptr;
}

// The stream need not wait for threads that sleep on a parked lane.  Nothing is
// read from the lane any more, and a thread that wakes looks where the stream
// is by then.  Nor could the stream wait.  A handler may have interrupted the
// sleep of its thread, and wait itself until the kernel has the stream (fork).
// Or the handler has jumped out of the sleep, and takes its time.
bool Settling::Unpark() {
  std::unique_ptr<lane::Lane> lane;
  {
    Latched latched(sock_);
    latches_.AssertHeld();
    if (parked_ == nullptr) return true;
    if (sock_->sleepers().AnyOnParked()) {
      parked_->WakeLocal();
      return false;
    }
    lane = std::move(parked_.Write(latches_.tx, latches_.rx));
  }
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->ReturnLane(Share(sock_), std::move(lane));
  }
  return true;
}

// Without memory for the timer, the lane goes back when the stream leaves its
// next lane.
void Settling::UnparkLater(std::uint32_t ms) {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->After(ms, [self = Share(sock_), ms] {
    Settling& settling = self->settling();
    if (!settling.Unpark()) {
      settling.UnparkLater(ms < kMostWaitMs ? 2 * ms : kMostWaitMs);
    }
  });
}

void Settling::LaneIsFree() {
  latches_.AssertHeld();
  free_ = true;
}

std::unique_ptr<lane::Lane> Settling::TakeParked() {
  latches_.AssertHeld();
  return std::move(parked_.Write(latches_.tx, latches_.rx));
}

void Settling::OnForkChild() {
  latches_.AssertUnshared();
  (void)parked_.Write(latches_.tx, latches_.rx).release();
  posted_ = false;
}

}  // namespace rcsock::posix
