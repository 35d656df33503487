// Connections that several processes hold: fork, exec, and the shared bytes
// that were read ahead.

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
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/zero_copy.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

// --- Bytes read ahead that are shared

bool Sock::SpillLatched() {
  if (!stream_->OnlyStash()) return false;
  const int error = stream_->ErrorBehindStash();
  stream::ByteQueue bytes = stream_->TakeStash();
  if (!unread_.Make(bytes.data(), bytes.size(), inode(),
                    came_ns_.load(std::memory_order_relaxed), error)) {
    stream_->GiveStash(std::move(bytes));
    return false;
  }
  unread_streams.fetch_add(1, std::memory_order_relaxed);
  RCSOCK_LOG(1, "fd %d: %zu unread bytes are shared", fd(), bytes.size());
  return true;
}

void Sock::BecomeUnread() {
  unread_streams.fetch_add(1, std::memory_order_relaxed);
  lane_state_.Step(LaneState::Event::kHalt);
  SetUnread(true);
}

void Sock::EndUnreadLatched() {
  if (mode() != Mode::kUnread) return;
  unread_.Close();
  if (Holding* all = FindHolding(holders_)) all->unread.store(0);
  unread_streams.fetch_sub(1, std::memory_order_relaxed);
  if (connected_.load(std::memory_order_relaxed) && attempts_ < 5 &&
      !closed_.load(std::memory_order_relaxed) && !lane_state_.Pinned() &&
      stream_ != nullptr) {
    TryAgainLater();
    lane_state_.Step(LaneState::Event::kConnect);
  }
  SetUnread(false);
}

// The analysis wants both latches for a change of the mode.
void Sock::SetUnread(bool unread) RC_NO_LOCK_CHECK {
  RC_DCHECK(mode() != Mode::kEngine);
  mode_.Write(tx_latch, rx_latch)
      .store(unread ? Mode::kUnread : Mode::kPlain, std::memory_order_seq_cst);
}

void Sock::Disconnected() {
  Latched latched(this);
  EndUnreadLatched();
}

IoResult Sock::UnreadRecv(int number, const iovec* iov, int count,
                          std::size_t total, int flags, std::size_t* done) {
  Critical critical;
  rx_latch.lock();
  // With the last of these bytes the stream may take a lane.  Its offsets are
  // to have all that is counted below.
  const InKernel in(this);
  if (!IsAt(number)) {
    rx_latch.unlock();
    return IoResult::Gone();
  }
  std::size_t n = 0;
  int error = 0;
  bool failed = false;
  bool fault = false;
  if (mode() == Mode::kUnread && total > *done) {
    IovRest rest(iov, count);
    rest.Skip(*done);
    const bool drop = (flags & MSG_TRUNC) != 0;
    n = unread_.Take(drop ? nullptr : rest.iov(), rest.count(), total - *done,
                     (flags & MSG_PEEK) != 0);
    fault = base::TakeFault();
    if (unread_.size() == 0 && !fault) {
      // The kernel may have what came before the error.
      int more = 0;
      if (n == 0 && *done == 0 && unread_.Failed() &&
          ::syscall(SYS_ioctl, number, FIONREAD, &more) == 0 && more > 0) {
        rx_latch.unlock();
        msghdr message{};
        message.msg_iov = const_cast<iovec*>(iov);
        message.msg_iovlen = static_cast<std::size_t>(count);
        const ssize_t m =
            ::syscall(SYS_recvmsg, number, &message, flags | MSG_DONTWAIT);
        if (m <= 0) return IoResult::Retry();  // another thread's by now
        if ((flags & MSG_PEEK) == 0) {
          rx_raw_.fetch_add(static_cast<std::uint64_t>(m),
                            std::memory_order_relaxed);
        }
        return IoResult::Done(m);
      }
      if (n == 0 && *done == 0) error = unread_.TakeError();
      failed = unread_.Failed();
      if (!failed) EndUnreadLatched();
    }
  }
  rx_latch.unlock();
  if (error != 0) {
    errno = error;
    return IoResult::Done(ssize_t{-1});
  }
  if (n == 0 && fault && *done == 0) {
    errno = EFAULT;
    return IoResult::Done(ssize_t{-1});
  }
  if (n == 0) {
    if (failed || fault) return IoResult::Done(*done);
    if (total > *done || mode() != Mode::kUnread) return IoResult::Retry();
    return IoResult::Done(*done);
  }
  if ((flags & MSG_PEEK) == 0) {
    rx_raw_.fetch_add(n, std::memory_order_relaxed);
  }
  *done += n;
  if (*done == total || fault) return IoResult::Done(*done);
  if ((flags & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL)
    return IoResult::Retry();
  // The kernel's bytes go along, as they would in one queue: a reader may take
  // a short answer for the end of what there is.
  int more = 0;
  if (::syscall(SYS_ioctl, number, FIONREAD, &more) == 0 && more > 0) {
    const ssize_t m = RecvRest(number, iov, count, *done, flags | MSG_DONTWAIT);
    if (m > 0) {
      if ((flags & MSG_PEEK) == 0) {
        rx_raw_.fetch_add(static_cast<std::uint64_t>(m),
                          std::memory_order_relaxed);
      }
      *done += static_cast<std::size_t>(m);
    }
  }
  return IoResult::Done(*done);
}

int Sock::TakeKept() {
  Critical critical;
  const base::LatchGuard hold(rx_latch);
  return mode() == Mode::kUnread ? TakeKeptLatched() : 0;
}

int Sock::TakeKeptLatched() {
  const int error = unread_.TakeError();
  if (unread_.size() == 0) EndUnreadLatched();
  return error;
}

std::size_t Sock::UnreadBytes() {
  if (mode() != Mode::kUnread) return 0;
  Critical critical;
  rx_latch.lock();
  const std::size_t n = mode() == Mode::kUnread ? unread_.size() : 0;
  rx_latch.unlock();
  return n;
}

bool Sock::HasError() {
  if (Completions()) return true;
  if (mode() != Mode::kUnread) return false;
  Critical critical;
  const base::LatchGuard hold(rx_latch);
  return mode() == Mode::kUnread && unread_.Failed();
}

int Sock::UnreadFd() {
  Critical critical;
  rx_latch.lock();
  const int number =
      mode() == Mode::kUnread && (unread_.size() > 0 || unread_.Failed())
          ? unread_.fd()
          : -1;
  rx_latch.unlock();
  return number;
}

bool Sock::InheritUnread(int memory) {
  rx_latch.AssertUnshared();
  if (!unread_.Open(memory)) return false;
  connected_.store(true, std::memory_order_relaxed);
  inode_.store(unread_.socket(), std::memory_order_relaxed);
  came_ns_.store(unread_.came_ns(), std::memory_order_relaxed);
  inherited_ = true;
  if (holders_ < 0) {
    // The process that started this program may read, too.
    reason_ = Reason::kPinnedExec;
    lane_state_.Step(LaneState::Event::kPin);
    GivenAway();
  }
  BecomeUnread();
  return true;
}

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
  if (!HideByFork(all, hides)) all->count.fetch_add(1);
}

void Sock::UnshareByFork(std::uint32_t fork) {
  // Another thread's fork may have counted itself meanwhile.  Then one too many
  // stays, which only keeps the stream on TCP.
  Holding* const all = FindHolding(holders_);
  if (all == nullptr || fork_ != fork) return;
  hides_ ? all->Unhide() : all->Leave();
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
  GiveToHolders();
}

bool Sock::SoleHolder() const {
  // The child of a fork under way is not counted before the end.
  return !Forking() && SoleHolderBeforeFork();
}

bool Sock::SoleHolderBeforeFork() const {
  if (given_away_.load(std::memory_order_seq_cst) != 0) return false;
  const Holding* all = FindHolding(holders_);
  return (all == nullptr || all->AloneIs(made_copies_)) &&
         (!Travels() || AloneByNotes(true));
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
  return (all == nullptr || all->OfOne()) &&
         (!Travels() || AloneByNotes(false));
}

void Sock::Spoil() {
  if (Holding* all = FindHolding(holders_)) {
    all->count.fetch_or(Holding::kSpoilt);
  }
  if (Travels() && fd() >= 0 && ProcessPinned() != Reason::kSandboxed) {
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
  mode() == Mode::kEngine ? LoseForHolders() : GiveToHolders();
  {
    Critical critical;
    const base::LatchGuard hold(hidden_latch);
    const Unused hidden = hidden_.exchange(Unused::kNo);
    if (hidden == Unused::kYes) all->Unhide();
    if (hidden == Unused::kNo || hidden == Unused::kAsks) all->Leave();
  }
  RCSOCK_LOG(2, "connection %d: now of %x", holders_.load(), all->count.load());
  holders_ = -1;
  told_tx_ = told_rx_ = 0;
}

void Sock::LetGo() {
  Latched latched(this);
  LeaveHolders();
}

void Sock::LeaveForExec() {
  if (const std::uint64_t share = share_.load();
      Travels() && share != 0 && EndsOfFamily() && given_away_.load() == 0) {
    Notes(fd()).DropShare(share);
    share_.store(0);
  }
  Holding* all = FindHolding(holders_);
  if (all == nullptr || exec_left_) return;
  // No other holder is left to see it.
  if ((all->count.load() & ~Holding::kMarks) < 2) return;
  MarkFork();
  TellGivenAway(all);
  exec_left_ = true;
  if (mode() == Mode::kEngine) LoseForHolders();
  all->Leave();
}

void Sock::ForkChild() {
  tx_latch.Reset();
  rx_latch.Reset();
  tx_latch.AssertUnshared();
  rx_latch.AssertUnshared();
  // A thread of the parent was inside, or this thread was, and a handler has
  // interrupted it there to fork.
  gate_.store((gate_.load(std::memory_order_relaxed) + kOneLife) & kLife,
              std::memory_order_relaxed);
  borrowers_.store(0, std::memory_order_relaxed);
  rx_sleepers_.store(0, std::memory_order_relaxed);
  tx_sleepers_.store(0, std::memory_order_relaxed);
  // This thread, too, may come back from a handler to a sleep of the parent's.
  // Its count was there, and it takes nothing back here (CountedSleep).
  for (auto& pins : pins_) pins.store(0, std::memory_order_relaxed);
  (void)parked_.Write(tx_latch, rx_latch).release();
  poll_sleepers.store(0, std::memory_order_relaxed);
  close_timer_ = 0;
  if (ZeroCopy* zero_copy = zero_copy_.load(std::memory_order_relaxed)) {
    zero_copy->ForkChild();
    CompletionsChanged();
  }
  // Without ForkPrepare this is what an earlier fork has left.
  const bool hides = std::exchange(hides_, false) && CountedByParent();
  made_copies_.store(false);
  kept_claim_.store(false);
  lane_state_.OnForkChild(mode() == Mode::kEngine && !hides);
  watched_ = false;
  timer_ = 0;
  settle_posted_ = false;
  starve_timer_ = false;
  source_.store(nullptr);
  source_wanted_ = false;
  remote_ = Remote();
  if (hidden_.load() != Unused::kNo) {
    // A copy of a copy.  Without room for it, this process is counted.
    hidden_.store(hides ? Unused::kYes : Unused::kAsks);
  } else if (hides) {
    BecomeHidden();
  } else if (mode() == Mode::kEngine) {
    // The stream could not be taken to TCP before the fork, so all of it is the
    // parent's.  The peer would take a byte from here for one of the parent's
    // frames.  The parent need not share the stream: it may have a lane again,
    // and the parent's end is the connection's.
    PutDeadSocket("its peer did not answer before fork");
    if (Holding* all = FindHolding(holders_); all != nullptr) {
      all->Leave();
      holders_ = -1;
    }
    Registrations::Get().Drop(this, -1, -1);
    ForgetEngine();
  }
  on_lane_.store(false);
  input_alone_.store(false);
  // The parent counts what it did.
  quick_ = stream::Quick();
  lane_tx_ = lane_rx_ = anchor_rx_ = 0;
  account_tx_ = tx_raw_.load();
  account_rx_ = rx_raw_.load();
  told_tx_ = account_tx_;
  told_rx_ = account_rx_;
  inherited_ = true;
  if (Travels()) TravelledByFork();
  sought_.store(false);
  promoted_ = false;
  refs_.store(1);
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

void Sock::AskForExec() {
  if (!lane_state_.Pinned()) {
    exec_pinned_ = true;
    exec_reason_ = reason_;
  }
  KeepPlain();
  StepToPlain(Reason::kPinnedExec);
  reason_ = Reason::kPinnedExec;
}

bool Sock::PinForExec(std::uint64_t deadline_ns) {
  AskForExec();
  const bool ok = ToPlain(Reason::kPinnedExec, deadline_ns);
  reason_ = Reason::kPinnedExec;
  return ok;
}

bool Sock::MayBequeath() {
  return connected_.load() && !closed_.load() && given_away_.load() == 0 &&
         !IsHalfClosed() && (!lane_state_.Pinned() || exec_pinned_) &&
         !lane_state_.Never() && !zero_copy_on_.load() && !Travels() &&
         Hold() && HoldingsFd() >= 0 && !Registrations::Get().Kept(this);
}

void Sock::SpoilForNext(int number) const {
  if (lane_state_.Pinned() && !exec_pinned_ &&
      ProcessPinned() != Reason::kSandboxed) {
    Notes(number).Spoil();
  }
}

void Sock::Lend() { FindHolding(holders_)->count.fetch_add(1); }

int Sock::Bequeath(std::uint64_t inode) {
  Holding* all = FindHolding(holders_);
  if (mode() == Mode::kEngine || all == nullptr) return -1;
  MarkFork();
  all->role.store(role_ == stream::Role::kAcceptor ? 1 : 0);
  all->inode.store(inode);
  return holders_;
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
  sock->set_fd(fd);
  sock->set_inode(all->inode.load());
  // The connection may have been on a lane before.
  sock->drift_ = Notes(fd).GetDrift();
  sock->LearnOptions(fd);
  sock->SetPeer(fd, address, length);
  return sock;
}

void Sock::Unpin() {
  // LeaveForExec has dropped the share.
  if (Travels() && share_.load() == 0) share_.store(Notes(fd()).AddShare());
  if (exec_left_) {
    exec_left_ = false;
    if (Holding* all = FindHolding(holders_)) all->count.fetch_add(1);
  }
  // The exec has failed, and the engine still has a stream that was lost for
  // the children.
  if (mode() == Mode::kEngine) {
    Latched latched(this);
    if (mode() == Mode::kEngine) KeepFromHolders();
  }
  if (!exec_pinned_) return;
  exec_pinned_ = false;
  reason_ = exec_reason_;
  lane_state_.Step(LaneState::Event::kUnpin);
  if (connected_.load() && attempts_ < 5 && !IsHalfClosed()) {
    TryAgainLater();
    AllowLane();
  }
}

}  // namespace rcsock::posix
