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

std::unique_ptr<lane::Lane> Sock::TakeLane() {
  stream_->ReleaseLane();
  notice_.End();
  remote_.Unlist();
  lane_is_shm_.Write(tx_latch, rx_latch) = false;
  return std::move(lane_.Write(tx_latch, rx_latch));
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
  Wake(false);
  Wake(true);
  return true;
}

// What the application has been told must stay true: a peer that exits with a
// frame unread resets the anchor behind the end, too.
bool Sock::LeavesEngineLatched(bool* spilled) {
  if (mode() != Mode::kEngine || stream_ == nullptr || lane_ != nullptr ||
      ending_.closed() || lane_state_.Seeking()) {
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
  // The kernel has not been told of SHUT_RD, nor of the stream's end.  It would
  // let a reader sleep.  It would also hide an end that only this end's last
  // write would show.
  if (rd_shut_ || stream_->Gone()) {
    ::syscall(SYS_shutdown, fd(), stream_->Gone() ? SHUT_RDWR : SHUT_RD);
  }
  // The next Stream would not know of the half close.
  if (rd_shut_ || stream_->Shut() || (stream_->Readiness() & POLLRDHUP) != 0) {
    way_back_.HalfClosed();
  }
  quick_.may_send = quick_.may_receive = false;
  NoteOnLane(fd(), this, false);
  if (starvation_.TakeLeft() && !spilled) {
    starvation_.JudgeFrom(stream_->tx_off());
  }
  SetMode(spilled ? Mode::kUnread : Mode::kPlain);
  // A stream in kUnread is not adopted while the offset of what TCP brings is
  // ahead of the application's.  SetUnread allows it again.
  if (spilled || lane_state_.Pinned() ||
      (search_.Spent() && !peer_.SeeksRdma())) {
    lane_state_.Step(LaneState::Event::kStay);
    return;
  }
  search_.AfterLeaving(tally_.demotions());
  lane_state_.Step(LaneState::Event::kReturn);
}

// The kernel answers a thread that still comes with the closed number.
void Sock::EndEngine(Conductor* conductor) {
  if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
  timer_ = 0;
  if (mode() != Mode::kEngine) return;
  if (stream_ != nullptr) {
    calls_.SetMoved(stream_->tx_off(), stream_->rx_off());
  }
  quick_.may_send = quick_.may_receive = false;
  options_.Drop();
  SetMode(Mode::kPlain);
  lane_state_.Step(LaneState::Event::kStay);
  Wake(false);
  Wake(true);
}

}  // namespace rcsock::posix
