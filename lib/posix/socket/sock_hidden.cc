// The child of a fork, with a copy of a stream that its parent's engine has.

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
#include "lib/posix/fd/file.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/linger.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_claim.h"
#include "lib/posix/socket/sock_fork.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

bool UnusedCopy::OnForkChild(bool hides) {
  if (state_.load() != State::kNo) {
    // A copy of a copy.  Without room for it, this process is counted.
    state_.store(hides ? State::kYes : State::kAsks);
  } else if (hides) {
    Become();
  }
  return state_.load() != State::kNo;
}

void UnusedCopy::Become() {
  AfterFork(sock_).ForgetParentsEngine();
  ask_fd_ = ParentsAsk();
  state_.store(State::kYes);
  SetKind(sock_, FileKind::kHiddenSock);
  CountHidden(1);
}

void UnusedCopy::Show() {
  state_.store(State::kNo);
  if (!sock_->Hidden()) return;
  SetKind(sock_, FileKind::kSock);
  CountHidden(-1);
}

void UnusedCopy::AskOwner() {
  Critical critical;
  const base::LatchGuard hold(hidden_latch);
  Holding* const all = sock_->holders().Find();
  // A thread that closes the last number leaves soon (Holders::Leave).
  if (state_.load() != State::kYes || sock_->fds.load() == 0 ||
      all == nullptr) {
    return;
  }
  all->Use();
  state_.store(State::kAsks);
  all->claim.Ask();
}

void UnusedCopy::Reveal() {
  if (state_.load() == State::kLeaves) Return();
  AskOwner();
  if (state_.load() != State::kAsks) return;
  Holding* const all = sock_->holders().Find();
  if (all == nullptr) return;
  const Owner owner = AwaitOwner(all, ask_fd_);
  Latched latched(sock_);
  const base::LatchGuard hold(hidden_latch);
  if (state_.load() != State::kAsks || sock_->holders().Find() != all) {
    return;
  }
  if (owner != Owner::kGave || !AfterFork(sock_).TakeOver(*all)) {
    // The stream's bytes are in the owner's ring, or the peer's.
    if (InBorrowedMemory()) {
      // The numbers of this process's parent are out of reach.  So the
      // connection ends for all.
      const sockaddr none{AF_UNSPEC, {}};
      ::syscall(SYS_connect, sock_->fd(), &none, sizeof none);
    }
    if (owner == Owner::kDead) ResetOnClose(sock_->fd());
    AfterFork(sock_).LoseConnection("its owner did not give it");
    all->Leave();
  }
  RCSOCK_LOG(2, "fd %d: used in a child: %d", sock_->fd(),
             static_cast<int>(owner));
  Show();
}

// What exec closes is this process's no more.
void UnusedCopy::Leave() {
  Critical critical;
  const base::LatchGuard hold(hidden_latch);
  Holding* const all = sock_->holders().Find();
  if (state_.load() != State::kYes || all == nullptr) return;
  state_.store(State::kLeaves);
  all->Unhide();
}

// The owner may have ended the connection meanwhile, and the Holding may be
// another connection's.
void UnusedCopy::Return() {
  Latched latched(sock_);
  const base::LatchGuard hold(hidden_latch);
  if (state_.load() != State::kLeaves) return;
  Holding* const all = sock_->holders().Find();
  const bool counted = all != nullptr && all->Hide();
  if (counted && all->inode.load() == sock_->anchor().inode()) {
    state_.store(State::kYes);
    return;
  }
  if (counted) all->Unhide();
  AfterFork(sock_).LoseConnection("its owner has ended it");
  Show();
}

void UnusedCopy::LeaveHolding(Holding* all) {
  Critical critical;
  const base::LatchGuard hold(hidden_latch);
  const State state = state_.exchange(State::kNo);
  if (state == State::kYes) all->Unhide();
  if (state == State::kNo || state == State::kAsks) all->Leave();
}

}  // namespace rcsock::posix
