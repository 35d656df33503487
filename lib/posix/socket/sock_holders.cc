#include "lib/posix/socket/sock_holders.h"

#include <sys/socket.h>

#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_settings.h"
#include "lib/posix/sys/pinned.h"

namespace rcsock::posix {

using base::Reason;

bool Holders::Make() {
  if (number_.load() >= 0) return true;
  const int number = MakeHolding();
  if (number < 0) return false;
  int none = -1;
  if (!number_.compare_exchange_strong(none, number)) {
    FindHolding(number)->Leave();
  }
  return true;
}

void Holders::ShareByFork(std::uint32_t fork, bool hides) {
  Holding* const all = Make() ? Find() : nullptr;
  if (all == nullptr) {
    // There is no memory.  Or another thread closes the stream at this moment,
    // and the child does not have it.
    sock_->lane_state().Step(LaneState::Event::kPin);
    return;
  }
  fork_.store(fork, std::memory_order_relaxed);
  if (!sock_->claim().HideFromChild(all, hides)) all->count.fetch_add(1);
}

void Holders::UnshareByFork(std::uint32_t fork) {
  // Another thread's fork may have counted itself meanwhile.  Then one too many
  // stays, which only keeps the stream on TCP.
  Holding* const all = Find();
  if (all == nullptr || fork_ != fork) return;
  sock_->claim().Unhide(all);
}

void Holders::TakeBack(std::uint32_t life) {
  if (sock_->calls().Life() == life) {
    given_away_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Holders::TellMoved() {
  latches_.AssertHeld();
  Holding* const all = Find();
  if (all == nullptr) return;
  const std::uint64_t tx = sock_->calls().tx();
  const std::uint64_t rx = sock_->calls().rx();
  all->tx.fetch_add(tx - told_tx_, std::memory_order_relaxed);
  all->rx.fetch_add(rx - told_rx_, std::memory_order_relaxed);
  told_tx_ = tx;
  told_rx_ = rx;
}

void Holders::HearMoved() {
  latches_.AssertHeld();
  const Holding* const all = Find();
  if (all == nullptr) return;
  TellMoved();
  const std::uint64_t tx = all->tx.load(std::memory_order_relaxed);
  const std::uint64_t rx = all->rx.load(std::memory_order_relaxed);
  sock_->tally().OthersMoved(tx - told_tx_, rx - told_rx_);
  sock_->calls().SetMoved(tx, rx);
  told_tx_ = tx;
  told_rx_ = rx;
}

void Holders::Mark() {
  Latched latched(sock_);
  TellMoved();
  // The thread that would give the word may end by the exec.
  sock_->claim().Give();
}

[[gnu::hot]] bool Holders::Sole() const {
  // The child of a fork under way is not counted before the end of the fork.
  return !Forking() && SoleBeforeFork();
}

[[gnu::hot]] bool Holders::SoleBeforeFork() const {
  if (given_away()) return false;
  const Holding* const all = number() < 0 ? nullptr : Find();
  return (all == nullptr || all->AloneIs(sock_->claim().made_copies())) &&
         sock_->noted().Alone(true);
}

// A fork under way, which may wait long for other streams' peers, does not
// matter to a closed stream.  `fds` was 0 before the stream was closed, and
// only a stream with numbers is counted for a child, and known there
// (ForEachSock).  If both come at one instant, the child may have a number that
// nothing there knows, as it may of any descriptor.
bool Holders::EndHere() const {
  if (given_away() || (!sock_->ending().closed() && Forking())) return false;
  return EndOfFamily() && sock_->noted().Alone(false);
}

bool Holders::EndOfFamily() const {
  const Holding* const all = Find();
  return all == nullptr || all->OfOne();
}

void Holders::Spoil() const {
  if (Holding* const all = Find()) all->count.fetch_or(Holding::kSpoilt);
  if (sock_->noted().Travels() && sock_->fd() >= 0 &&
      ProcessPinned() != Reason::kSandboxed) {
    Notes(sock_->fd()).Spoil();
  }
}

void Holders::TellGivenAway(Holding* all) const {
  if (given_away()) all->count.fetch_or(Holding::kMarks);
}

[[gnu::hot]] void Holders::Leave() {
  latches_.AssertHeld();
  Holding* const all = number() < 0 ? nullptr : Find();
  if (all == nullptr) return;
  // If no lane will ever come, the stream's counts are for the statistics only.
  if (sock_->lane_state().Never()) Spoil();
  TellGivenAway(all);
  TellMoved();
  // The thread that took the stream from its lane may not have told yet, and
  // finds no Holding after this.
  sock_->mode() == Mode::kEngine ? sock_->claim().Lose()
                                 : sock_->claim().Give();
  sock_->copy().LeaveHolding(all);
  RCSOCK_LOG(2, "connection %d: now of %x", number(), all->count.load());
  Forget();
  told_tx_ = told_rx_ = 0;
}

void Holders::LetGo() {
  Latched latched(sock_);
  Leave();
}

void Holders::Join(int number, std::uint64_t tx, std::uint64_t rx) {
  latches_.AssertUnshared();
  number_.store(number);
  told_tx_ = tx;
  told_rx_ = rx;
}

void Holders::TakeOver(std::uint64_t tx, std::uint64_t rx) {
  latches_.AssertHeld();
  told_tx_ = tx;
  told_rx_ = rx;
}

void Holders::OnForkChild() {
  latches_.AssertUnshared();
  told_tx_ = sock_->calls().tx();
  told_rx_ = sock_->calls().rx();
}

Sock* Holders::Inherited(int number, int fd) {
  Holding* const all = FindHolding(number);
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  auto* address = reinterpret_cast<sockaddr*>(&peer);
  if (all == nullptr || real::getpeername(fd, address, &length) != 0) {
    return nullptr;
  }
  Sock* sock = Sock::New(all->role.load() == 1 ? stream::Role::kAcceptor
                                               : stream::Role::kConnector,
                         false);
  if (sock == nullptr) return nullptr;
  const std::uint64_t tx = all->tx.load();
  const std::uint64_t rx = all->rx.load();
  sock->holders().Join(number, tx, rx);
  // Copies that have not been used ring the program before this one.
  all->owner.store(0);
  sock->tally().JoinAt(tx, rx);
  sock->tally().Inherit();
  sock->anchor().SetNumber(fd);
  sock->anchor().SetInode(all->inode.load());
  // The connection may have been on a lane before.
  sock->noted().LearnDrift(fd);
  Settings(sock).Learn(fd);
  sock->peer().Set(fd, address, length);
  return sock;
}

}  // namespace rcsock::posix
