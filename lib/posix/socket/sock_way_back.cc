#include "lib/posix/socket/sock_way_back.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/sleep.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_route.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

// The wait for a lane that both ends have agreed to.  The peer's threads may
// have to come out of the kernel first.  If they are late, the peer has written
// nothing to the lane either.
constexpr std::uint64_t kMostAwaitNs = 20'000'000;

std::uint64_t LeaveDeadline() { return base::NowNs() + 1'600'000'000; }

// The peer may already have the lane that this end has agreed to, and write to
// it.  An end that left before its lane comes would not see what a dying peer
// had put there.  So the lane comes, and is left.
bool WayBack::AwaitsLane(Reason reason) {
  if (!sock_->lane_state().Agreed() || sock_->peer().SeeksRemote())
    return false;
  Latched latched(sock_);
  latches_.AssertHeld();
  if (sock_->engine() == nullptr || sock_->lane() != nullptr ||
      sock_->ending().closed() || !sock_->anchor().SaidReady()) {
    return false;
  }
  const std::uint64_t now = base::NowNs();
  if (sock_->lane_state().Step(LaneState::Event::kLeave)) {
    since_ns_ = now;
    why_ = reason;
  }
  return now - since_ns_ < kMostAwaitNs;
}

bool WayBack::Step(Reason reason) {
  if (Route(sock_).Engaged()) {
    if (AwaitsLane(reason)) return false;
    sock_->search().Cancel();
    {
      Latched latched(sock_);
      if (sock_->engine() != nullptr) {
        sock_->lane_state().Step(LaneState::Event::kLeave);
        sock_->engine()->Demote(reason, true);
        sock_->engine()->Progress();
        sock_->HandleChanges();
      }
    }
    if (sock_->mode() == Mode::kEngine) sock_->BackToPlain();
  }
  return sock_->mode() != Mode::kEngine;
}

bool WayBack::ToPlain(Reason reason, std::uint64_t deadline_ns,
                      std::uint32_t pause_ns) {
  if (deadline_ns == 0) deadline_ns = LeaveDeadline();
  for (int i = 0;; ++i) {
    if (Step(reason)) return true;
    if (Stuck() || base::NowNs() >= deadline_ns) break;
    // The peer's background thread answers within a round trip or two.
    base::SleepThrough(i < 50 ? 100'000 : pause_ns);
  }
  // The stream did not reach the kernel in time.
  {
    Latched latched(sock_);
    sock_->lane_state().Step(LaneState::Event::kStopLeaving);
  }
  return sock_->mode() != Mode::kEngine;
}

// Returns whether no wait helps.  Only bytes that were read ahead hold the
// stream: there was no memory to share them in.  Or the stream has failed, and
// stays with the engine until it is closed.
bool WayBack::Stuck() const {
  Latched latched(sock_);
  const stream::Stream* const engine = sock_->engine();
  return engine != nullptr && sock_->lane() == nullptr &&
         (engine->OnlyStash() || engine->Failed());
}

void WayBack::PinSoon(Reason reason) {
  sock_->holders().Spoil();
  sock_->lane_state().Step(LaneState::Event::kPin);
  Step(reason);
  sock_->search().SetReason(reason);
}

bool WayBack::Pin(Reason reason, std::uint64_t deadline_ns) {
  sock_->holders().Spoil();
  return PinHere(reason, deadline_ns);
}

bool WayBack::PinHere(Reason reason, std::uint64_t deadline_ns) {
  if (!sock_->lane_state().Pinned() && sock_->peer().connected()) {
    RCSOCK_LOG(1, "fd %d: stays on TCP: %s", sock_->fd(),
               base::ReasonKey(reason));
  }
  sock_->lane_state().Step(LaneState::Event::kPin);
  const bool ok = ToPlain(reason, deadline_ns);
  sock_->search().SetReason(reason);
  return ok;
}

void WayBack::PinByOption() {
  sock_->lane_state().SetPinnedByOption();
  Pin(Reason::kPinnedOption);
}

// Runs in a child of vfork, whose descriptors are not those that the stream's
// numbers mean.  So it touches memory only, and posts to the conductor.
void WayBack::AskFromBorrowed() {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->Post(
      [self = Share(sock_)] { self->way_back().Step(Reason::kPinnedExec); });
}

// A stream that is half closed in the kernel may not be promoted any more.  The
// switch would take that end for the end of the peer (rule 1).
void WayBack::HalfClosed() {
  latches_.AssertHeld();
  sock_->holders().Spoil();
  half_closed_.Write(latches_.tx, latches_.rx) = true;
  sock_->lane_state().Step(LaneState::Event::kPin);
}

bool WayBack::IsHalfClosed() const {
  Latched latched(sock_);
  return half_closed_;
}

Reason WayBack::why() const {
  latches_.AssertHeld();
  return why_;
}

}  // namespace rcsock::posix
