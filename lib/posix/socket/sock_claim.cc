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

// A stream goes to TCP before the fork if libc or the kernel could use it past
// a look-up.  So does a stream of which the child's first use would have to
// find something in the parent.
bool ClaimKeeper::MayHide(bool forking) {
  // Only a lane in shared memory has a link.
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

// Another thread may be taking the stream off its lane.  This thread keeps the
// word first, and then looks at the mode.  BackToPlain sets the mode, and gives
// the word after.  So one of the two sees the other.  A stream that is on TCP
// by now has no unused copies.
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
[[gnu::hot]] bool ClaimKeeper::SharesLane() const {
  if (sock_->mode() != Mode::kEngine) return false;
  const Holding* all = sock_->holders().Find();
  return all != nullptr && all->OfSeveral();
}

void ClaimKeeper::Keep() {
  sock_->tx_latch.AssertHeld();
  sock_->rx_latch.AssertHeld();
  Holding* all = sock_->holders().Find();
  if (all == nullptr) return;
  if (all->OfSeveral()) {
    // A program that was executed meanwhile may have cleared the owner.
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
  if (!all->claim.Give()) return;
  WakeAskers(all);
  AskedStreamLeft();
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

// The end of the stream here would end the connection, which children have,
// too.
bool ClaimKeeper::LeaveToCopies(std::uint64_t deadline_ns) {
  return !SharesLane() ||
         sock_->way_back().ToPlain(Reason::kPinnedFork, deadline_ns);
}

// Without ForkPrepare hides_ is what an earlier fork has left.
bool ClaimKeeper::OnForkChild() {
  const bool hides = hides_ && CountedByParent();
  Reset();
  return hides;
}

}  // namespace rcsock::posix
