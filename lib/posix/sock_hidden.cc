// The copy of a stream on a lane that a child of fork has, and has not used yet
// (hidden.h).

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "lib/base/barrier.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/each_sock.h"
#include "lib/posix/epoll.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/hidden.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

// --- The parent, whose engine has the stream

// What libc or the kernel could use past a look-up, and what the child's first
// use would have to find in the parent, keeps today's way.
bool Sock::MayHide(bool forking) {
  if (mode() != Mode::kEngine || !OnLane() || lane_kind_ != lane::Kind::kShm ||
      lane_state_.Leaving() || lane_state_.Pinned() || closed_.load() ||
      Travels() || given_away_.load() != 0 || zero_copy_on_.load() ||
      hidden_.load() != Unused::kNo) {
    return false;
  }
  const Holding* all = FindHolding(holders_);
  if (all == nullptr || !all->MayHideMore()) return false;
  // stdio writes to the first three numbers by calls of its own.
  const auto unfit = [](int number) {
    return number <= STDERR_FILENO || base::IsInternalFd(number);
  };
  return !AnyNumber(this, unfit) && InterestsMayHide(this, forking);
}

// The lane may be on its way out in another thread.  The word is kept first,
// and then the mode is looked at.  BackToPlain sets the mode, and gives the
// word after.  So one of the two sees the other.  A stream that is on TCP by
// now has no hidden copies.
bool Sock::HideByFork(Holding* all, bool hides) {
  hides_ = false;
  if (hidden_.load() != Unused::kNo) {
    // A copy of a copy.
    hides_ = hidden_.load() == Unused::kYes && all->Hide();
    return hides_;
  }
  if (!hides || !MayHide(true)) return false;
  all->owner.store(static_cast<std::uint32_t>(OwnPid()));
  all->inode.store(anchor_.inode());
  if (!all->Hide()) return false;
  made_copies_.store(true);
  all->claim.Keep();
  kept_claim_.store(true);
  if (mode() != Mode::kEngine) {
    kept_claim_.store(false);
    all->claim.Give();
    all->Unhide();
    return false;
  }
  hides_ = true;
  return true;
}

// A child that waits for the stream is counted as a holder already.
bool Sock::SharesLane() const {
  const Holding* all = FindHolding(holders_);
  return mode() == Mode::kEngine && all != nullptr && all->OfSeveral();
}

void Sock::KeepFromHolders() {
  Holding* all = FindHolding(holders_);
  if (all == nullptr) return;
  if (all->OfSeveral()) {
    // A program that was executed meanwhile may have taken this away.
    all->owner.store(static_cast<std::uint32_t>(OwnPid()));
    ListenForAsks();
  }
  all->claim.Keep();
  kept_claim_.store(true);
}

// A filter may refuse the call.  A thread that waits looks again soon.
static void WakeAskers(Holding* all) {
  if (ProcessPinned() == Reason::kSandboxed) return;
  base::FutexWake(&all->claim.word, 1 << 20, true);
}

// Only the process that has kept the word gives it: by now the word may be
// another holder's.
void Sock::GiveToHolders() {
  Holding* all = FindHolding(holders_);
  if (all == nullptr || mode() == Mode::kEngine ||
      !kept_claim_.exchange(false)) {
    return;
  }
  TellMovedLatched();
  all->unread.store(mode() == Mode::kUnread && unread_.fd() >= 0
                        ? static_cast<std::uint32_t>(unread_.fd()) + 1
                        : 0);
  if (all->claim.Give()) WakeAskers(all);
}

void Sock::LoseForHolders() {
  Holding* all = FindHolding(holders_);
  if (all != nullptr && kept_claim_.exchange(false) && all->claim.Lose()) {
    WakeAskers(all);
  }
}

void Sock::LeaveForClaim() {
  const Holding* all = FindHolding(holders_);
  if (all == nullptr || !all->claim.Asked()) return;
  if (!StepToPlain(Reason::kPinnedFork)) return;
  Latched latched(this);
  GiveToHolders();
}

// This end of the stream would be the connection's, and children have it, too.
bool Sock::LeaveToHidden(std::uint64_t deadline_ns) {
  return !SharesLane() || ToPlain(Reason::kPinnedFork, deadline_ns);
}

// --- The child

void Sock::BecomeHidden() {
  interest_latch.AssertUnshared();
  interests_user = false;
  if (interests != nullptr) {
    // The kernel has these registrations once the stream is on TCP, if the
    // parent still has them.  This process can't know them, so it must not take
    // the stream from the kernel.
    InterestsHideSets(this);
    InterestsDrop(this, -1);
    KeepPlain();
  }
  ForgetEngine();
  ask_fd_ = ParentsAsk();
  hidden_.store(Unused::kYes);
  SetKind(this, FileKind::kHiddenSock);
  CountHidden(1);
}

void Sock::Show() {
  hidden_.store(Unused::kNo);
  if (!File::Hidden()) return;
  SetKind(this, FileKind::kSock);
  CountHidden(-1);
}

void Sock::AskOwner() {
  Critical critical;
  const base::LatchGuard hold(hidden_latch);
  Holding* const all = FindHolding(holders_);
  // A thread that closes the last number leaves soon (LeaveHolders).
  if (hidden_.load() != Unused::kYes || fds.load() == 0 || all == nullptr) {
    return;
  }
  all->Use();
  hidden_.store(Unused::kAsks);
  if (all->claim.Ask() == Claim::kAsked) RingOwner(ask_fd_);
}

void Sock::Reveal() {
  if (hidden_.load() == Unused::kLeaves) HideAgain();
  AskOwner();
  if (hidden_.load() != Unused::kAsks) return;
  Holding* const all = FindHolding(holders_);
  if (all == nullptr) return;
  const Owner owner = AwaitOwner(all, ask_fd_);
  Latched latched(this);
  const base::LatchGuard hold(hidden_latch);
  if (hidden_.load() != Unused::kAsks || FindHolding(holders_) != all) return;
  if (owner != Owner::kGave || !TakeOverLatched(*all)) {
    // The stream's bytes are in the owner's ring, or the peer's.
    if (InBorrowedMemory()) {
      // The numbers of this process's parent are out of reach.  So the
      // connection ends for all.
      const sockaddr none{AF_UNSPEC, {}};
      ::syscall(SYS_connect, fd(), &none, sizeof none);
    }
    if (owner == Owner::kDead) ResetAtLastClose();
    PutDeadSocket("its owner did not give it");
    all->Leave();
    holders_ = -1;
    KeepPlain();
  }
  RCSOCK_LOG(2, "fd %d: used in a child: %d", fd(), static_cast<int>(owner));
  Show();
}

// As a child of a fork that found the stream on TCP.
bool Sock::TakeOverLatched(const Holding& all) {
  told_tx_ = account_tx_ = all.tx.load();
  told_rx_ = account_rx_ = all.rx.load();
  tx_raw_.store(told_tx_);
  rx_raw_.store(told_rx_);
  LearnOptions(fd());
  drift_ = Notes(fd()).GetDrift();
  const std::uint32_t unread = all.unread.load();
  if (unread == 0) return true;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%u", all.owner.load(),
                unread - 1);
  base::UniqueFd memory(base::OpenHigh([&] {
    return ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  }));
  if (!memory.ok() || Unread::Claimed(memory.get()) != anchor_.inode() ||
      !unread_.Open(memory.get())) {
    return false;
  }
  (void)memory.release();
  BecomeUnread();
  return true;
}

// What exec closes is this process's no more.
void Sock::LeaveUnused() {
  Critical critical;
  const base::LatchGuard hold(hidden_latch);
  Holding* const all = FindHolding(holders_);
  if (hidden_.load() != Unused::kYes || all == nullptr) return;
  hidden_.store(Unused::kLeaves);
  all->Unhide();
}

// The owner may have ended the connection meanwhile, and the place may be
// another connection's.
void Sock::HideAgain() {
  Latched latched(this);
  const base::LatchGuard hold(hidden_latch);
  if (hidden_.load() != Unused::kLeaves) return;
  Holding* const all = FindHolding(holders_);
  const bool counted = all != nullptr && all->Hide();
  if (counted && all->inode.load() == anchor_.inode()) {
    hidden_.store(Unused::kYes);
    return;
  }
  if (counted) all->Unhide();
  PutDeadSocket("its owner has ended it");
  holders_ = -1;
  KeepPlain();
  Show();
}

}  // namespace rcsock::posix
