// Connections that several processes hold: fork and exec.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

// --- Fork

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
  starvation_.OnForkChild();
  notice_.OnForkChild();
  remote_ = Remote();
  if (!copy_.OnForkChild(hides) && mode() == Mode::kEngine) LoseToParent();
  on_lane_.store(false);
  input_alone_.store(false);
  ForgetMoved();
  noted_.OnForkChild();
  refs_.store(1);
}

void Sock::ForgetCalls() {
  calls_.OnForkChild();
  sleepers_.OnForkChild();
  (void)parked_.Write(tx_latch, rx_latch).release();
}

// The stream could not be taken to TCP before the fork, so all of it is the
// parent's.  The peer would take a byte from here for one of the parent's
// frames.  The parent need not share the stream: it may have a lane again, and
// the parent's end is the connection's.
void Sock::LoseToParent() {
  PutDeadSocket("its peer did not answer before fork");
  if (Holding* const all = holders_.Find(); all != nullptr) {
    all->Leave();
    holders_.Forget();
  }
  Registrations::Get().Drop(this, -1, -1);
  ForgetEngine();
}

// The parent counts what it did.
void Sock::ForgetMoved() {
  quick_ = stream::Quick();
  lane_tx_ = lane_rx_ = 0;
  tally_.OnForkChild();
  holders_.OnForkChild();
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

Sock* Sock::Inherited(int number, int fd) {
  Holding* const all = FindHolding(number);
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
  const std::uint64_t tx = all->tx.load();
  const std::uint64_t rx = all->rx.load();
  sock->holders_.Join(number, tx, rx);
  // Copies that have not been used ring the program before this one.
  all->owner.store(0);
  sock->BeginAt(tx, rx);
  sock->tally_.Inherit();
  sock->anchor().SetNumber(fd);
  sock->anchor().SetInode(all->inode.load());
  // The connection may have been on a lane before.
  sock->noted_.LearnDrift(fd);
  sock->LearnOptions(fd);
  sock->SetPeer(fd, address, length);
  return sock;
}

}  // namespace rcsock::posix
