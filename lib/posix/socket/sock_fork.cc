#include "lib/posix/socket/sock_fork.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_settings.h"

namespace rcsock::posix {

using base::Reason;

void AfterFork::Begin() {
  sock_->tx_latch.Reset();
  sock_->rx_latch.Reset();
  AssertUnshared(sock_);
  ForgetCalls();
  sock_->ending().OnForkChild();
  sock_->zero_copy().OnForkChild();
  const bool hides = sock_->claim().OnForkChild();
  sock_->lane_state().OnForkChild(sock_->mode() == Mode::kEngine && !hides);
  sock_->watch().OnForkChild();
  sock_->anchor().OnForkChild();
  sock_->options().OnForkChild();
  sock_->timer_ = 0;
  sock_->starvation().OnForkChild();
  sock_->notice().OnForkChild();
  sock_->remote().OnForkChild();
  if (!sock_->copy().OnForkChild(hides) && sock_->mode() == Mode::kEngine)
    LoseToParent();
  sock_->on_lane_.store(false);
  sock_->input_alone_.store(false);
  ForgetMoved();
  sock_->noted().OnForkChild();
  sock_->refs_.store(1);
}

void AfterFork::ForgetCalls() {
  sock_->calls().OnForkChild();
  sock_->sleepers().OnForkChild();
  sock_->settling().OnForkChild();
}

// The stream could not be taken to TCP before the fork, so all of it is the
// parent's.  The peer would take a byte from here for one of the parent's
// frames.  The parent need not share the stream: it may have a lane again, and
// the parent's end is the connection's.
void AfterFork::LoseToParent() {
  PutDeadSocket("its peer did not answer before fork");
  if (Holding* const all = sock_->holders().Find(); all != nullptr) {
    all->Leave();
    sock_->holders().Forget();
  }
  Registrations::Get().Drop(sock_, -1, -1);
  ForgetEngine();
}

// The parent counts what it did.
void AfterFork::ForgetMoved() {
  AssertUnshared(sock_);
  sock_->quick_ = stream::Quick();
  sock_->lane_tx_ = sock_->lane_rx_ = 0;
  sock_->tally().OnForkChild();
  sock_->holders().OnForkChild();
}

// The lane and what the engine does are the parent's.  No destructor runs: it
// would tell the peer, and a thread of the parent may have been within the
// stream.  So only the stream's own block goes back to its pool.
void AfterFork::ForgetEngine() {
  AssertUnshared(sock_);
  (void)sock_->lane_.Write(sock_->tx_latch, sock_->rx_latch).release();
  sock_->lane_is_shm_.Write(sock_->tx_latch, sock_->rx_latch) = false;
  AnyNumber(sock_, [&](int number) {
    NoteOnLane(number, sock_, false);
    return false;
  });
  stream::Stream::operator delete(
      sock_->stream_.Write(sock_->tx_latch, sock_->rx_latch).release());
  sock_->search().SetReason(Reason::kPinnedFork);
  if (sock_->mode() == Mode::kEngine) sock_->SetMode(Mode::kPlain);
}

// Puts a dead socket in place of a connection that must not be touched here.
void AfterFork::PutDeadSocket(const char* why) {
  long dead = ::syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int number = 0; number <= top; ++number) {
    if (NamedEvenHidden(number) != sock_) continue;
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

// --- For UnusedCopy

// The kernel has the registrations once the stream is on TCP, if the parent
// still has them.  This process can't know them, so it must not take the stream
// from the kernel.
void AfterFork::ForgetParentsEngine() {
  AssertUnshared(sock_);
  interest_latch.AssertUnshared();
  sock_->interests_user = false;
  if (sock_->interests != nullptr) {
    Registrations::Get().HideSets(sock_);
    Registrations::Get().Drop(sock_, -1, -1);
    sock_->lane_state().Step(LaneState::Event::kPin);
  }
  ForgetEngine();
}

void AfterFork::LoseConnection(const char* why) {
  PutDeadSocket(why);
  sock_->holders().Forget();
  sock_->lane_state().Step(LaneState::Event::kPin);
}

// The child goes on as one that found the stream on TCP at the fork.
bool AfterFork::TakeOver(const Holding& all) {
  AssertLatched(sock_);
  const std::uint64_t tx = all.tx.load();
  const std::uint64_t rx = all.rx.load();
  sock_->holders().TakeOver(tx, rx);
  sock_->tally().JoinAt(tx, rx);
  Settings(sock_).Learn(sock_->fd());
  sock_->noted().LearnDrift(sock_->fd());
  const std::uint32_t unread = all.unread.load();
  if (unread == 0) return true;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%u", all.owner.load(),
                unread - 1);
  base::UniqueFd memory(base::OpenHigh([&] {
    return ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  }));
  if (!memory.ok() ||
      Unread::Claimed(memory.get()) != sock_->anchor().inode() ||
      !sock_->read_ahead().Open(memory.get())) {
    return false;
  }
  (void)memory.release();
  sock_->SetUnread(true);
  return true;
}

}  // namespace rcsock::posix
