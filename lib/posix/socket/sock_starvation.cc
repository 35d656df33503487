#include "lib/posix/socket/sock_starvation.h"

#include <algorithm>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

// Looks in a row without progress.  kMostLate: this thread comes late to the
// last look.  kMostRemote: the lane is to another host.  Its receiver may wait
// for its CPU, and has still to read all that the switch has read ahead.
constexpr int kMostLate = 5;
constexpr int kMostRemote = 4;
// And so many more while other streams of the service try whether TCP has more
// room.  Then the stream leaves without their verdict, as it may need that room
// itself.
constexpr int kMostRefused = 20;

// More than TCP's buffers take, if the receiver does not read.
constexpr std::uint64_t kMoreThanTcp = 8 << 20;
// JudgeStarved looks so long after a stream has left, and so often at most.
constexpr std::uint32_t kJudgeMs = 50;
constexpr int kMostJudged = 4;

bool Starvation::NoRoom(const lane::Lane& lane) {
  posted_ = lane.Posted();
  return !set_;
}

void Starvation::Begin(lane::Lane& lane) {
  set_ = true;
  acked_ = lane.Acked();
  since_ns_ = base::NowNs();
}

Starvation::Verdict Starvation::Look(lane::Lane* lane, std::uint16_t service) {
  set_ = false;
  if (lane == nullptr) {
    late_ = 0;
    return Verdict::kNothing;
  }
  if (lane->Writable() > 0) {
    late_ = 0;
    // A receiver puts off telling of a little room while there is more to take,
    // and may then take no more.  So a sender that found no room has not been
    // told.  If another thread has posted since, a thread that found no room
    // may still wait, in a call or in an epoll set.
    return lane->Posted() == posted_ ? Verdict::kWake : Verdict::kWatch;
  }
  if (lane->Acked() != acked_) {
    late_ = 0;
    // A thread that waits now may have begun while this look ran, and set none.
    return Verdict::kWatch;
  }
  return LookLate(lane, service);
}

Starvation::Verdict Starvation::LookLate(lane::Lane* lane,
                                         std::uint16_t service) {
  const std::uint64_t now = base::NowNs();
  // If this thread is late, the receiver may be, too.
  const bool late = now - since_ns_ > 3 * kLookMs * 1'000'000ull / 2;
  const int looks = Prospect::StarvedLooks(service);
  const bool shm = lane->kind() == lane::Kind::kShm;
  const int most = std::max(late ? kMostLate : 1,
                            shm ? looks : std::max(kMostRemote, looks));
  ++late_;
  if (late_ < most || (late_ < most + kMostRefused &&
                       !Prospect::MayLeaveStarved(service, now))) {
    return Verdict::kWatch;
  }
  late_ = 0;
  return Verdict::kLeave;
}

// --- What the stream does then

void Sock::WatchStarved() {
  if (lane_ == nullptr || !starvation_.NoRoom(*lane_.get())) return;
  Conductor* conductor = Conductor::IfRunning();
  // Without memory the look does not come: the next call without room tries
  // again.
  if (conductor != nullptr &&
      conductor->After(Starvation::kLookMs,
                       [self = Share(this)] { self->OnStarved(); }) != 0) {
    starvation_.Begin(*lane_.get());
  }
}

void Sock::OnStarved() {
  Latched latched(this);
  const bool sends = mode() == Mode::kEngine && stream_ != nullptr &&
                     lane_ != nullptr && stream_->FastTx();
  switch (starvation_.Look(sends ? lane_.get() : nullptr, peer_.service())) {
    case Starvation::Verdict::kNothing:
      break;
    case Starvation::Verdict::kWake:
      Wake(true);
      break;
    case Starvation::Verdict::kWatch:
      WatchStarved();
      break;
    case Starvation::Verdict::kLeave:
      stream_->Demote(Reason::kStarved, true);
      stream_->Progress();
      HandleChanges();
  }
}

void Sock::JudgeSoon(Starved starved) {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->After(
      kJudgeMs, [self = Share(this), starved] { self->JudgeStarved(starved); });
}

// The kernel has the stream again.  If TCP is full by now, too, or has taken
// more than it keeps, the receiver is only slow.  Then the lane would have been
// worth the wait, and the stream is as welcome on a lane as before.  Otherwise
// its sender needed the room, and the stream stays on TCP the longer.
//
// A sender that has moved nothing yet may not have had a CPU since.  It may
// also be in the midst of a long call, which is counted at its end.  A sender
// that has moved more since the last look may go on until TCP is full.
void Sock::JudgeStarved(Starved starved) {
  Latched latched(this);
  if (mode() != Mode::kPlain || ending_.closed() || lane_state_.Pinned()) {
    return;
  }
  const std::uint64_t at = calls_.tx();
  const bool vain = anchor_.IsFull() || at - starved.left_at >= kMoreThanTcp;
  const bool over = at != starved.left_at && at == starved.seen_at;
  if (!vain && !over && starved.looks + 1 < kMostJudged) {
    JudgeSoon({starved.left_at, at, starved.looks + 1});
    return;
  }
  Prospect::Starved(peer_.service(), vain);
  if (!vain || demotions_ == 0) return;
  --demotions_;
  search_.Later();
}

bool Sock::RingIsFull() const { return lane_ != nullptr && lane_->HalfFull(); }

}  // namespace rcsock::posix
