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
// Judge looks so long after a stream has left, and so often at most.
constexpr std::uint32_t kJudgeMs = 50;
constexpr int kMostJudged = 4;

// The time between two looks.
constexpr std::uint32_t kLookMs = 100;

void Starvation::Watch() {
  tx_.AssertHeld();
  lane::Lane* const lane = sock_->lane();
  if (lane == nullptr) return;
  posted_ = lane->Posted();
  Conductor* conductor = Conductor::IfRunning();
  // Without memory the look does not come: the next call without room tries
  // again.
  if (set_ || conductor == nullptr ||
      conductor->After(kLookMs, [self = Share(sock_)] {
        self->starvation().OnLook();
      }) == 0) {
    return;
  }
  set_ = true;
  acked_ = lane->Acked();
  since_ns_ = base::NowNs();
}

Starvation::Verdict Starvation::Look(lane::Lane* lane) {
  tx_.AssertHeld();
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
  return LookLate(lane);
}

Starvation::Verdict Starvation::LookLate(lane::Lane* lane) {
  tx_.AssertHeld();
  const std::uint16_t service = sock_->peer().service();
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

void Starvation::OnLook() {
  Latched latched(sock_);
  stream::Stream* const stream = sock_->engine();
  const bool sends =
      stream != nullptr && sock_->lane() != nullptr && stream->FastTx();
  switch (Look(sends ? sock_->lane() : nullptr)) {
    case Verdict::kNothing:
      break;
    case Verdict::kWake:
      sock_->Wake(true);
      break;
    case Verdict::kWatch:
      Watch();
      break;
    case Verdict::kLeave:
      stream->Demote(Reason::kStarved, true);
      stream->Progress();
      sock_->HandleChanges();
  }
}

void Starvation::JudgeSoon(Left left) {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->After(kJudgeMs, [self = Share(sock_), left] {
    self->starvation().Judge(left);
  });
}

// The kernel has the stream again.  If TCP is full by now, too, or has taken
// more than it keeps, the receiver is only slow.  Then the lane would have been
// worth the wait, and the stream is as welcome on a lane as before.  Otherwise
// its sender needed the room, and the stream stays on TCP the longer.
//
// A sender that has moved nothing yet may not have had a CPU since.  It may
// also be in the midst of a long call, which is counted at its end.  A sender
// that has moved more since the last look may go on until TCP is full.
void Starvation::Judge(Left left) {
  Latched latched(sock_);
  if (sock_->mode() != Mode::kPlain || sock_->ending().closed() ||
      sock_->lane_state().Pinned()) {
    return;
  }
  const std::uint64_t now = sock_->calls().tx();
  const bool vain = sock_->anchor().IsFull() || now - left.at >= kMoreThanTcp;
  const bool over = now != left.at && now == left.seen_at;
  if (!vain && !over && left.looks + 1 < kMostJudged) {
    JudgeSoon({left.at, now, left.looks + 1});
    return;
  }
  Prospect::Starved(sock_->peer().service(), vain);
  if (vain && sock_->tally().TakeDemotionBack()) sock_->search().Later();
}

void Starvation::OnForkChild() {
  tx_.AssertUnshared();
  set_ = false;
}

}  // namespace rcsock::posix
