#include "lib/posix/socket/sock_exec.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "lib/posix/sharing/holders.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/pinned.h"

namespace rcsock::posix {

using base::Reason;

void AcrossExec::Ask() {
  if (!sock_->lane_state_.Pinned()) {
    pinned_ = true;
    reason_ = sock_->reason_;
  }
  sock_->KeepPlain();
  sock_->StepToPlain(Reason::kPinnedExec);
  sock_->reason_ = Reason::kPinnedExec;
}

bool AcrossExec::Pin(std::uint64_t deadline_ns) {
  Ask();
  const bool ok = sock_->ToPlain(Reason::kPinnedExec, deadline_ns);
  sock_->reason_ = Reason::kPinnedExec;
  return ok;
}

void AcrossExec::Leave() {
  sock_->noted_.LeaveForExec();
  Holding* all = FindHolding(sock_->holders_);
  if (all == nullptr || left_) return;
  // No other holder is left to see it.
  if ((all->count.load() & ~Holding::kMarks) < 2) return;
  sock_->MarkFork();
  sock_->TellGivenAway(all);
  left_ = true;
  if (sock_->mode() == Mode::kEngine) sock_->claim_.Lose();
  all->Leave();
}

bool AcrossExec::MayBequeath() {
  return sock_->connected_.load() && !sock_->closed_.load() &&
         sock_->given_away_.load() == 0 && !sock_->IsHalfClosed() &&
         (!sock_->lane_state_.Pinned() || pinned_) &&
         !sock_->lane_state_.Never() && !sock_->zero_copy_.on() &&
         !sock_->noted_.Travels() && sock_->Hold() && HoldingsFd() >= 0 &&
         !Registrations::Get().Kept(sock_);
}

void AcrossExec::SpoilForNext(int number) const {
  if (sock_->lane_state_.Pinned() && !pinned_ &&
      ProcessPinned() != Reason::kSandboxed) {
    Notes(number).Spoil();
  }
}

void AcrossExec::AddHolder() {
  FindHolding(sock_->holders_)->count.fetch_add(1);
}

int AcrossExec::Bequeath(std::uint64_t inode) {
  Holding* all = FindHolding(sock_->holders_);
  if (sock_->mode() == Mode::kEngine || all == nullptr) return -1;
  sock_->MarkFork();
  all->role.store(sock_->role_ == stream::Role::kAcceptor ? 1 : 0);
  all->inode.store(inode);
  return sock_->holders_;
}

void AcrossExec::Failed() {
  sock_->noted_.ExecFailed();
  if (left_) {
    left_ = false;
    if (Holding* all = FindHolding(sock_->holders_)) all->count.fetch_add(1);
  }
  // The exec has failed, and the engine still has a stream that was lost for
  // the children.
  if (sock_->mode() == Mode::kEngine) {
    Latched latched(sock_);
    if (sock_->mode() == Mode::kEngine) sock_->claim_.Keep();
  }
  if (!pinned_) return;
  pinned_ = false;
  sock_->reason_ = reason_;
  sock_->lane_state_.Step(LaneState::Event::kUnpin);
  if (sock_->connected_.load() && sock_->attempts_ < 5 &&
      !sock_->IsHalfClosed()) {
    sock_->TryAgainLater();
    sock_->AllowLane();
  }
}

// What the kernel has not got makes the end a reset.
void AcrossExec::MakeReset(bool last) {
  sock_->tx_latch.AssertHeld();
  sock_->rx_latch.AssertHeld();
  if (!last && !resets_) {
    socklen_t length = sizeof linger_;
    resets_ = ::getsockopt(sock_->fd(), SOL_SOCKET, SO_LINGER, &linger_,
                           &length) == 0;
  }
  sock_->ResetAtLastClose();
}

void AcrossExec::TakeResetBack() {
  Latched latched(sock_);
  if (!std::exchange(resets_, false) || sock_->fd() < 0) return;
  ::syscall(SYS_setsockopt, sock_->fd(), SOL_SOCKET, SO_LINGER, &linger_,
            sizeof linger_);
}

}  // namespace rcsock::posix
