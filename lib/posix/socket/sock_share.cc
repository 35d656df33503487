// Connections that several processes hold: fork and exec.

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

// --- Fork

bool Sock::Hold() {
  if (holders_.load() >= 0) return true;
  const int number = MakeHolding();
  if (number < 0) return false;
  int none = -1;
  if (!holders_.compare_exchange_strong(none, number)) {
    FindHolding(number)->Leave();
  }
  return true;
}

void Sock::ShareByFork(std::uint32_t fork, bool hides) {
  Holding* const all = Hold() ? FindHolding(holders_) : nullptr;
  if (all == nullptr) {
    // There is no memory.  Or another thread closes the stream at this moment,
    // and the child does not have it.
    lane_state_.Step(LaneState::Event::kPin);
    return;
  }
  fork_.store(fork, std::memory_order_relaxed);
  if (!claim_.HideFromChild(all, hides)) all->count.fetch_add(1);
}

void Sock::UnshareByFork(std::uint32_t fork) {
  // Another thread's fork may have counted itself meanwhile.  Then one too many
  // stays, which only keeps the stream on TCP.
  Holding* const all = FindHolding(holders_);
  if (all == nullptr || fork_ != fork) return;
  claim_.Unhide(all);
}

void Sock::TellMovedLatched() {
  Holding* all = FindHolding(holders_);
  if (all == nullptr) return;
  const std::uint64_t tx = tx_raw_.load(std::memory_order_relaxed);
  const std::uint64_t rx = rx_raw_.load(std::memory_order_relaxed);
  all->tx.fetch_add(tx - told_tx_, std::memory_order_relaxed);
  all->rx.fetch_add(rx - told_rx_, std::memory_order_relaxed);
  told_tx_ = tx;
  told_rx_ = rx;
}

void Sock::HearMovedLatched() {
  const Holding* all = FindHolding(holders_);
  if (all == nullptr) return;
  TellMovedLatched();
  const std::uint64_t tx = all->tx.load(std::memory_order_relaxed);
  const std::uint64_t rx = all->rx.load(std::memory_order_relaxed);
  // Others have counted what they have moved.
  account_tx_ += tx - told_tx_;
  account_rx_ += rx - told_rx_;
  tx_raw_.store(tx, std::memory_order_relaxed);
  rx_raw_.store(rx, std::memory_order_relaxed);
  told_tx_ = tx;
  told_rx_ = rx;
}

void Sock::MarkFork() {
  Latched latched(this);
  TellMovedLatched();
  // The thread that would give the word may end by the exec.
  claim_.Give();
}

bool Sock::SoleHolder() const {
  // The child of a fork under way is not counted before the end.
  return !Forking() && SoleHolderBeforeFork();
}

bool Sock::SoleHolderBeforeFork() const {
  if (given_away_.load(std::memory_order_seq_cst) != 0) return false;
  const Holding* all = FindHolding(holders_);
  return (all == nullptr || all->AloneIs(claim_.made_copies())) &&
         noted_.Alone(true);
}

// A fork under way, which may wait long for other streams' peers, does not
// matter to a closed stream.  `fds` was 0 before closed_ was set, and only a
// stream with numbers is counted for a child, and known there (ForEachSock).
// If both come at one instant, the child may have a number that nothing there
// knows, as it may of any descriptor.
bool Sock::EndsHere() const {
  if (given_away_.load(std::memory_order_seq_cst) != 0 ||
      (!closed_.load(std::memory_order_seq_cst) && Forking())) {
    return false;
  }
  const Holding* all = FindHolding(holders_);
  return (all == nullptr || all->OfOne()) && noted_.Alone(false);
}

void Sock::Spoil() {
  if (Holding* all = FindHolding(holders_)) {
    all->count.fetch_or(Holding::kSpoilt);
  }
  if (noted_.Travels() && fd() >= 0 && ProcessPinned() != Reason::kSandboxed) {
    Notes(fd()).Spoil();
  }
}

// A program that is not followed has the connection.  Only this process knows,
// and is about to leave the others.
void Sock::TellGivenAway(Holding* all) const {
  if (given_away_.load(std::memory_order_seq_cst) != 0) {
    all->count.fetch_or(Holding::kMarks);
  }
}

void Sock::LeaveHolders() {
  Holding* all = FindHolding(holders_);
  if (all == nullptr) return;
  // Then the stream's counts are for the statistics only.
  if (lane_state_.Never()) Spoil();
  TellGivenAway(all);
  TellMovedLatched();
  // The thread that took the stream from its lane may not have told yet, and
  // finds no Holding after this.
  mode() == Mode::kEngine ? claim_.Lose() : claim_.Give();
  copy_.LeaveHolding(all);
  RCSOCK_LOG(2, "connection %d: now of %x", holders_.load(), all->count.load());
  holders_ = -1;
  told_tx_ = told_rx_ = 0;
}

void Sock::LetGo() {
  Latched latched(this);
  LeaveHolders();
}

void Sock::ForkChild() {
  tx_latch.Reset();
  rx_latch.Reset();
  tx_latch.AssertUnshared();
  rx_latch.AssertUnshared();
  ForgetCalls();
  close_timer_ = 0;
  zero_copy_.OnForkChild();
  const bool hides = claim_.OnForkChild();
  lane_state_.OnForkChild(mode() == Mode::kEngine && !hides);
  watch_.OnForkChild();
  anchor_.OnForkChild();
  options_.OnForkChild();
  timer_ = 0;
  settle_posted_ = false;
  starve_timer_ = false;
  source_.store(nullptr);
  source_wanted_ = false;
  remote_ = Remote();
  if (!copy_.OnForkChild(hides) && mode() == Mode::kEngine) LoseToParent();
  on_lane_.store(false);
  input_alone_.store(false);
  ForgetMoved();
  inherited_ = true;
  noted_.OnForkChild();
  refs_.store(1);
}

// A thread of the parent was inside, or this thread was, and a handler has
// interrupted it there to fork.
void Sock::ForgetCalls() {
  gate_.store((gate_.load(std::memory_order_relaxed) + kOneLife) & kLife,
              std::memory_order_relaxed);
  rx_sleepers_.store(0, std::memory_order_relaxed);
  tx_sleepers_.store(0, std::memory_order_relaxed);
  // This thread, too, may come back from a handler to a sleep of the parent's.
  // Its count was there, and it takes nothing back here (CountedSleep).
  for (auto& pins : pins_) pins.store(0, std::memory_order_relaxed);
  (void)parked_.Write(tx_latch, rx_latch).release();
  poll_sleepers.store(0, std::memory_order_relaxed);
}

// The stream could not be taken to TCP before the fork, so all of it is the
// parent's.  The peer would take a byte from here for one of the parent's
// frames.  The parent need not share the stream: it may have a lane again, and
// the parent's end is the connection's.
void Sock::LoseToParent() {
  PutDeadSocket("its peer did not answer before fork");
  if (Holding* all = FindHolding(holders_); all != nullptr) {
    all->Leave();
    holders_ = -1;
  }
  Registrations::Get().Drop(this, -1, -1);
  ForgetEngine();
}

// The parent counts what it did.
void Sock::ForgetMoved() {
  quick_ = stream::Quick();
  lane_tx_ = lane_rx_ = 0;
  account_tx_ = tx_raw_.load();
  account_rx_ = rx_raw_.load();
  told_tx_ = account_tx_;
  told_rx_ = account_rx_;
  promoted_ = false;
}

// The lane and what the engine does are the parent's.  No destructor runs: it
// would tell the peer, and a thread of the parent may have been within the
// stream.  So only the stream's own block goes back to its pool.
void Sock::ForgetEngine() {
  (void)lane_.Write(tx_latch, rx_latch).release();
  lane_is_shm_.Write(tx_latch, rx_latch) = false;
  AnyNumber(this, [this](int number) {
    NoteOnLane(number, this, false);
    return false;
  });
  stream::Stream::operator delete(stream_.Write(tx_latch, rx_latch).release());
  reason_ = Reason::kPinnedFork;
  if (mode() == Mode::kEngine) SetMode(Mode::kPlain);
}

// Puts a dead socket in place of a connection that must not be touched here.
void Sock::PutDeadSocket(const char* why) {
  long dead = ::syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int number = 0; number <= top; ++number) {
    if (NamedEvenHidden(number) != this) continue;
    base::Log("fd %d: %s; closed here", number, why);
    const long flags = ::syscall(SYS_fcntl, number, F_GETFD);
    if (dead < 0) {
      // No descriptor is left, so the number itself is closed and taken.  Where
      // there is no socket at all, the number stays closed.
      ::syscall(SYS_close, number);
      dead = ::syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    if (dead < 0) continue;
    const int keeps = flags > 0 && (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
    if (dead != number) {
      ::syscall(SYS_dup3, dead, number, keeps);
    } else {
      // The socket stays at this number, and the next number gets another
      // socket.
      ::syscall(SYS_fcntl, number, F_SETFD, flags);
      dead = -1;
    }
  }
  if (dead >= 0) ::syscall(SYS_close, dead);
}

// --- Exec

// Runs in a child of vfork, whose descriptors are not those that the stream's
// numbers mean.  So it touches memory only, and posts to the conductor.
void Sock::AskFromBorrowed() {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->Post([self = Share()] { self->StepToPlain(Reason::kPinnedExec); });
}

Sock* Sock::Inherited(int number, int fd) {
  Holding* all = FindHolding(number);
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  auto* address = reinterpret_cast<sockaddr*>(&peer);
  if (all == nullptr || real::getpeername(fd, address, &length) != 0) {
    return nullptr;
  }
  Sock* sock = New(all->role.load() == 1 ? stream::Role::kAcceptor
                                         : stream::Role::kConnector,
                   false);
  if (sock == nullptr) return nullptr;
  sock->tx_latch.AssertUnshared();
  sock->rx_latch.AssertUnshared();
  sock->holders_ = number;
  // Copies that have not been used ring the program before this one.
  all->owner.store(0);
  sock->told_tx_ = sock->account_tx_ = all->tx.load();
  sock->told_rx_ = sock->account_rx_ = all->rx.load();
  sock->tx_raw_.store(sock->told_tx_);
  sock->rx_raw_.store(sock->told_rx_);
  sock->inherited_ = true;
  sock->anchor().SetNumber(fd);
  sock->anchor().SetInode(all->inode.load());
  // The connection may have been on a lane before.
  sock->noted_.LearnDrift(fd);
  sock->LearnOptions(fd);
  sock->SetPeer(fd, address, length);
  return sock;
}

}  // namespace rcsock::posix
