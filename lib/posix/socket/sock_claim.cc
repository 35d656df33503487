// The parent of a fork, whose engine has the stream.

#include "lib/posix/socket/sock_claim.h"

#include <unistd.h>

#include <utility>

#include "lib/base/barrier.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"

namespace rcsock::posix {

using base::Reason;

// What libc or the kernel could use past a look-up, and what the child's first
// use would have to find in the parent, keeps today's way.
bool ClaimKeeper::MayHide(bool forking) {
  // The link is that of a lane in shared memory.
  if (sock_->mode() != Mode::kEngine || !sock_->OnLane() ||
      sock_->notice().link() == nullptr || sock_->lane_state().Leaving() ||
      sock_->lane_state().Pinned() || sock_->ending().closed() ||
      sock_->noted().Travels() || sock_->holders().given_away() ||
      sock_->zero_copy().on() ||
      sock_->copy().state() != UnusedCopy::State::kNo) {
    return false;
  }
  const Holding* all = sock_->holders().Find();
  if (all == nullptr || !all->MayHideMore()) return false;
  // stdio writes to the first three numbers by calls of its own.
  const auto unfit = [](int number) {
    return number <= STDERR_FILENO || base::IsInternalFd(number);
  };
  return !AnyNumber(sock_, unfit) &&
         Registrations::Get().MayHide(sock_, forking);
}

// The lane may be on its way out in another thread.  The word is kept first,
// and then the mode is looked at.  BackToPlain sets the mode, and gives the
// word after.  So one of the two sees the other.  A stream that is on TCP by
// now has no unused copies.
bool ClaimKeeper::HideFromChild(Holding* all, bool hides) {
  hides_ = false;
  if (const auto its = sock_->copy().state(); its != UnusedCopy::State::kNo) {
    // A copy of a copy.
    hides_ = its == UnusedCopy::State::kYes && all->Hide();
    return hides_;
  }
  if (!hides || !MayHide(true)) return false;
  all->owner.store(static_cast<std::uint32_t>(OwnPid()));
  all->inode.store(sock_->anchor().inode());
  if (!all->Hide()) return false;
  made_copies_.store(true);
  all->claim.Keep();
  kept_.store(true);
  if (sock_->mode() != Mode::kEngine) {
    kept_.store(false);
    all->claim.Give();
    all->Unhide();
    return false;
  }
  hides_ = true;
  return true;
}

void ClaimKeeper::Unhide(Holding* all) const {
  hides_ ? all->Unhide() : all->Leave();
}

// A child that waits for the stream is counted as a holder already.
bool ClaimKeeper::SharesLane() const {
  const Holding* all = sock_->holders().Find();
  return sock_->mode() == Mode::kEngine && all != nullptr && all->OfSeveral();
}

void ClaimKeeper::Keep() {
  sock_->tx_latch.AssertHeld();
  sock_->rx_latch.AssertHeld();
  Holding* all = sock_->holders().Find();
  if (all == nullptr) return;
  if (all->OfSeveral()) {
    // A program that was executed meanwhile may have taken this away.
    all->owner.store(static_cast<std::uint32_t>(OwnPid()));
    ListenForAsks();
  }
  all->claim.Keep();
  kept_.store(true);
}

// A filter may refuse the call.  A thread that waits looks again soon.
static void WakeAskers(Holding* all) {
  if (ProcessPinned() == Reason::kSandboxed) return;
  base::FutexWake(&all->claim.word, 1 << 20, true);
}

// Only the process that has kept the word gives it: by now the word may be
// another holder's.
void ClaimKeeper::Give() {
  sock_->tx_latch.AssertHeld();
  sock_->rx_latch.AssertHeld();
  Holding* all = sock_->holders().Find();
  if (all == nullptr || sock_->mode() == Mode::kEngine ||
      !kept_.exchange(false)) {
    return;
  }
  sock_->holders().TellMoved();
  const int unread = sock_->read_ahead().HeldFd();
  all->unread.store(unread >= 0 ? static_cast<std::uint32_t>(unread) + 1 : 0);
  if (all->claim.Give()) WakeAskers(all);
}

void ClaimKeeper::Lose() {
  Holding* all = sock_->holders().Find();
  if (all != nullptr && kept_.exchange(false) && all->claim.Lose()) {
    WakeAskers(all);
  }
}

void ClaimKeeper::LeaveIfAsked() {
  const Holding* all = sock_->holders().Find();
  if (all == nullptr || !all->claim.Asked()) return;
  if (!sock_->way_back().Step(Reason::kPinnedFork)) return;
  Latched latched(sock_);
  Give();
}

// This end of the stream would be the connection's, and children have it, too.
bool ClaimKeeper::LeaveToCopies(std::uint64_t deadline_ns) {
  return !SharesLane() ||
         sock_->way_back().ToPlain(Reason::kPinnedFork, deadline_ns);
}

void ClaimKeeper::Reset() {
  hides_ = false;
  made_copies_.store(false, std::memory_order_relaxed);
  kept_.store(false, std::memory_order_relaxed);
}

// Without ForkPrepare hides_ is what an earlier fork has left.
bool ClaimKeeper::OnForkChild() {
  const bool hides = hides_ && CountedByParent();
  Reset();
  return hides;
}

}  // namespace rcsock::posix
