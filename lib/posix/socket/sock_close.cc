#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <memory>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/foreign_fd.h"
#include "lib/base/latch.h"
#include "lib/base/no_cancel.h"
#include "lib/base/real.h"
#include "lib/base/sleep.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/spare.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/socket/address_reuse.h"
#include "lib/posix/socket/linger.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_closed.h"
#include "lib/posix/socket/sock_end.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

bool Waits(const linger& option) {
  return option.l_onoff != 0 && option.l_linger > 0;
}

void SetLinger(int number, bool on, int seconds) {
  const linger option{on ? 1 : 0, seconds};
  ::syscall(SYS_setsockopt, number, SOL_SOCKET, SO_LINGER, &option,
            sizeof option);
}

// The close does what SO_LINGER asks for once no latch is held.  Until then a
// copy of the number keeps the connection.  Returns the copy.  Returns -1
// without room for a copy, and no thread waits then.
int CopyToLinger(int number, bool ends) {
  const int copy = base::CopyHighForParent(number);
  if (copy < 0 && ends) SetLinger(number, false, 0);
  return copy;
}

}  // namespace

// Returns the number to close; the conductor finds the rest of the stream
// without a number.  The reset of a closed stream is due, and waits for
// nothing.  The caller makes the reset before close() returns, so that the
// addresses are as free as TCP leaves them.
int Ending::LeaveKept() {
  AssertLatched(sock_);
  ClosedStreams::Remove(sock_);
  const int number = sock_->anchor().TakeNumber();
  sock_->watch().End(Conductor::IfRunning(), number);
  return number;
}

bool Ending::EndsOn(std::uint16_t port) {
  Latched latched(sock_);
  const int number = sock_->fd();
  const stream::Stream* const stream = sock_->engine();
  if (number < 0 || stream == nullptr ||
      (!finished() && !stream->PeerEnded())) {
    return false;
  }
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  // The port is at one place in both families.
  return ::syscall(SYS_getsockname, number, &own, &length) == 0 &&
         reinterpret_cast<const sockaddr_in*>(&own)->sin_port == port;
}

// One close of a stream's last number.
struct Ending::Closing {
  // Closes the number.  `held`: the connection goes on by another.
  void Close(bool held) {
    result = CloseNumber(number, next, held);
    error = errno;
  }
  void End(Sock* sock, bool held) {
    sock->noted().Leave(number);
    Close(held);
  }

  const int number;
  const Successor& next;
  Conductor* const conductor;
  const linger asked;
  int result = 0;
  int error = 0;
  int over = -1;  // a number whose close is to be a reset
};

[[gnu::hot]] int Ending::CloseLast(int number, const Successor& next) {
  Critical critical;
  const bool engine = sock_->mode() == Mode::kEngine;
  if (!engine) {
    SetClosed();
    if (EndOnTcp()) {
      const int result = CloseNumber(number, next, false);
      const int saved = errno;
      sock_->Unref();
      errno = saved;
      return result;
    }
  }
  const base::NoCancel no_cancel;
  if (engine) {
    if (int left; sock_->left().LeaveTo(number, next, &left)) return left;
    if (!sock_->claim().LeaveToCopies()) sock_->claim().Lose();
    SetClosed();
  }
  return CloseInFull(number, next);
}

[[gnu::hot]] void Ending::SetClosed() {
  closed_.store(true, std::memory_order_seq_cst);
  sock_->lane_state()
      .StepFrom<LaneState::Event::kHalt, LaneState::State::kIdle>();
}

int Ending::CloseInFull(int number, const Successor& next) {
  const bool sought = sock_->lane_state().Seeking();
  Conductor* const conductor = Conductor::IfRunning();
  const bool background = conductor != nullptr && conductor->OnThread();
  // For a stream on TCP the kernel's close does what SO_LINGER asks for.  No
  // latch is held then, so its option matters to nobody here.
  const bool kernels = !EndCalls(number, sought, conductor) &&
                       sock_->mode() == Mode::kPlain && !background;
  Closing closing{number, next, conductor,
                  kernels ? linger{} : LingerOf(number)};
  // The conductor's thread, which closes what was closed while in use, does not
  // wait.
  const bool ends = sock_->holders().EndHere();
  const bool waits = Waits(closing.asked) && ends && !background;
  const int lingering = Waits(closing.asked) ? CopyToLinger(number, ends) : -1;
  bool late = false;
  {
    Latched latched(sock_);
    // A thread that gave the search up meanwhile had not yet seen that the
    // stream is closed.
    sock_->lane_state().Step(LaneState::Event::kHalt);
    sock_->send_gate().Wake();
    if (sock_->engine() != nullptr && closing.conductor != nullptr) {
      EndsNothing() ? CloseShared(closing) : CloseKept(closing);
    } else {
      if (sock_->mode() == Mode::kUnread &&
          sock_->read_ahead().Held().size() > 0 && sock_->holders().EndHere()) {
        ResetOnClose(number);
      }
      sock_->noted().Leave(number);
      late = kernels;
      if (!late) closing.Close(false);
      sock_->anchor().SetNumber(-1);
    }
  }
  if (late) closing.Close(false);
  if (closing.over >= 0) {
    ResetOnClose(closing.over);
    base::CloseRaw(closing.over);
    KeepSpares();
  }
  sock_->tally().Account();
  if (lingering >= 0 && waits) Linger(lingering, closing.asked.l_linger);
  // The number may be the last one all the same: other holders may have let go
  // meanwhile.
  if (lingering >= 0 && !waits) base::CloseElsewhere(lingering);
  sock_->Unref();
  errno = closing.error;
  return closing.result;
}

// A search of another thread may begin, or be given up, until both latches are
// held.  Then the stream ends the long way.  So it does on the conductor's
// thread, which does not wait, as the kernel's close may.
[[gnu::hot]] bool Ending::EndOnTcp() {
  if (sock_->mode() == Mode::kEngine) return false;
  SetClosed();
  if (const Conductor* const conductor = Conductor::IfRunning();
      !OnTcpAlone() || (conductor != nullptr && conductor->OnThread())) {
    return false;
  }
  // A thread that adds a registration takes the latch, and then looks whether
  // the stream is closed.  The mark of the close and the latch are taken by
  // locked instructions, so one of the two threads sees the other.  The latch
  // is looked at first: a thread that has just released it has listed its
  // registration, which the second look finds.
  if (interest_latch.Held() || sock_->interests.load() != nullptr) {
    Registrations::Get().Drop(sock_, -1, -1);
  }
  sock_->anchor().AwaitBorrowers();
  {
    Latched latched(sock_);
    if (!OnTcpAlone()) return false;
    sock_->tally().AccountLatched();
    sock_->anchor().SetNumber(-1);
  }
  return true;
}

// What other threads could still do with the stream, or know of it, needs no
// look here, nor do the latches.
[[gnu::hot]] bool Ending::EndLone(int number) {
  if (!sock_->EndsLone(number)) return false;
  if (sock_->interests.load(std::memory_order_relaxed) != nullptr) {
    Registrations::Get().Drop(sock_, -1, -1);
  }
  sock_->tally().AccountLone();
  sock_->anchor().SetNumber(-1);
  ClearEntry(number);
  sock_->GiveLone();
  return true;
}

[[gnu::hot]] bool Ending::OnTcpAlone() const {
  using State = LaneState::State;
  const State state = sock_->lane_state().state();
  return (state == State::kOff || state == State::kNever) &&
         sock_->mode() == Mode::kPlain && sock_->holders().number() < 0 &&
         !sock_->noted().Travels() && !sock_->sleepers().Any();
}

// TryAdopt has run before, or finds the stream closed.  The registrations of a
// stream that has just been adopted are still the kernel's.  The conductor may
// keep the open file, and the kernel's sets would then report a closed stream.
// The sets would do so, too, while the conductor makes a call for a stream that
// seeks.
bool Ending::EndCalls(int number, bool sought, Conductor* conductor) {
  sock_->tx_latch.lock();
  const bool adopted = sock_->mode() == Mode::kEngine;
  sock_->tx_latch.unlock();
  Registrations::Get().Drop(sock_, -1, adopted || sought ? number : -1);
  if (sock_->lane_state().Step(LaneState::Event::kStop) &&
      conductor != nullptr) {
    conductor->Cancel(sock_);
  }
  sock_->anchor().AwaitBorrowers();
  return adopted;
}

bool Ending::EndsNothing() const {
  const stream::Stream& stream = *sock_->engine();
  return !sock_->holders().EndHere() && sock_->lane() == nullptr &&
         stream.tx() == stream::Tx::kRaw && stream.rx() == stream::Rx::kRaw &&
         !stream.WantsAnchorWrite();
}

// Neither a reset nor a shutdown may follow from what was read ahead here.
void Ending::CloseShared(Closing& closing) {
  AssertLatched(sock_);
  sock_->watch().End(closing.conductor, sock_->fd());
  closing.End(sock_, true);
  sock_->anchor().SetNumber(-1);
  sock_->Ref();  // until Finish
  SetFinished();
  sock_->settling().Post();
}

// The kernel's close would end the stream before the peer has everything.  So
// the conductor keeps the connection under another number until then.  Unread
// bytes count also where the kernel still has them: a FIN would come before the
// reset that the kernel's close makes of them.
void Ending::CloseKept(Closing& closing) {
  AssertLatched(sock_);
  stream::Stream& stream = *sock_->engine();
  int unread = 0;
  if (stream.rx() == stream::Rx::kRaw && sock_->holders().EndHere() &&
      (stream.AtKernel() || stream.Ahead() != 0)) {
    ::syscall(SYS_ioctl, closing.number, FIONREAD, &unread);
  }
  const bool reset =
      (closing.asked.l_onoff != 0 && closing.asked.l_linger == 0) ||
      (unread > 0 && static_cast<std::size_t>(unread) > stream.Ahead());
  sock_->watch().End(closing.conductor, sock_->fd());
  int kept = base::CopyHighForParent(closing.number);
  if (kept < 0) kept = UseSpare(closing.number);
  // What is owed and cannot be kept is lost, so the end is not an orderly one.
  if (kept < 0 && stream.WantsAnchorWrite() && sock_->holders().EndHere()) {
    ResetOnClose(closing.number);
  }
  closing.End(sock_, kept >= 0);
  sock_->anchor().SetNumber(kept);
  sock_->Ref();  // until Finish
  if (kept >= 0) {
    ClosedStreams::Add(sock_);
    sock_->watch().Begin(closing.conductor, kept, Share(sock_), EPOLLIN);
  }
  sock_->notice().Tell(
      lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller, 0);
  stream.Close(reset);
  stream.Progress();
  sock_->HandleChanges();
  sock_->Wake(false);
  sock_->Wake(true);
  if (kept >= 0 && finished() && resets()) {
    closing.over = LeaveKept();
  } else if (kept < 0) {
    // Out of descriptors: the connection ends now.  The peer takes what has
    // landed in its ring, as after a kill.
    SetFinished();
    sock_->settling().Post();
  } else {
    BoundClose(closing.conductor);
  }
}

// A peer that never reads must not keep the connection for ever.
void Ending::BoundClose(Conductor* conductor) {
  latches_.AssertHeld();
  timer_ = conductor->After(
      60'000, [self = Share(sock_)] { self->ending().OnLinger(); });
  if (!sock_->engine()->AwaitsLanding()) return;
  conductor->After(250, [self = Share(sock_)] {
    Critical within;
    Latched latched(self.get());
    stream::Stream* const stream = self->engine();
    if (self->ending().finished() || stream == nullptr) return;
    stream->Hurry();
    self->HandleChanges();
  });
}

// The application's close has already waited for as long as it was to.
void Ending::CloseWithoutWaiting(int number) const {
  if (!Waits(LingerOf(number))) return base::CloseRaw(number);
  // Other holders of the connection have the option, too.
  if (!sock_->holders().EndHere()) return base::CloseElsewhere(number);
  SetLinger(number, false, 0);
  base::CloseRaw(number);
}

void Ending::Linger(int number, int seconds) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  constexpr long kLongestSleepNs = 20'000'000;
  const std::uint64_t deadline =
      base::NowNs() + static_cast<std::uint64_t>(seconds) * kSecond;
  timespec brief{0, 500'000};
  for (bool interrupted = false;;) {
    {
      Latched latched(sock_);
      latches_.AssertHeld();
      const std::uint64_t now = base::NowNs();
      // The conductor has let go of the connection, or never had it.  The rest
      // is the kernel's.
      if (finish_done_ || sock_->fd() < 0) {
        const linger its = LingerOf(number);
        const std::uint64_t left = deadline > now ? deadline - now : 0;
        const bool resets = its.l_onoff != 0 && its.l_linger == 0;
        if (!resets) {
          SetLinger(number, left > 0,
                    static_cast<int>((left + kSecond - 1) / kSecond));
        }
        break;
      }
      // The connection goes on without this call, and no thread waits for it
      // any more.  A signal ends the wait, as it ends the kernel's.
      if (now >= deadline || interrupted) {
        SetLinger(number, false, 0);
        break;
      }
    }
    interrupted = ::syscall(SYS_nanosleep, &brief, nullptr) != 0;
    brief.tv_nsec = std::min(2 * brief.tv_nsec, kLongestSleepNs);
  }
  base::CloseRaw(number);
}

void Ending::LoseNumber(int number) {
  Critical critical;
  // A registration belongs to the open description, and outlives its number.
  // In the kernel's set it could then not be moved, so such a stream stays on
  // TCP.
  if (sock_->mode() == Mode::kPlain &&
      Registrations::Get().Named(sock_, number)) {
    sock_->lane_state().Step(LaneState::Event::kPin);
    sock_->search().SetReason(Reason::kPinnedOption);
  }
  // Each of two closing threads looks here, with the latches, behind its claim.
  // Either the first thread has not chosen the second thread's number, or the
  // second thread finds that choice.
  Latched latched(sock_);
  if (sock_->fd() != number) {
    LeaveNumber(number, sock_);
    return;
  }
  const int other = LeaveNumberForAny(number, sock_);
  sock_->anchor().SetNumber(other);
  sock_->watch().Move(Conductor::IfRunning(), number, other, Share(sock_));
}

void Ending::Vanished() {
  Critical critical;
  if (sock_->mode() == Mode::kEngine) sock_->claim().Lose();
  closed_.store(true, std::memory_order_seq_cst);
  Registrations::Get().Drop(sock_, -1, -1);
  sock_->lane_state().Step(LaneState::Event::kHalt);
  Conductor* conductor = Conductor::IfRunning();
  if (sock_->lane_state().Step(LaneState::Event::kStop) &&
      conductor != nullptr) {
    conductor->Cancel(sock_);
  }
  sock_->tx_latch.lock();
  sock_->rx_latch.lock();
  sock_->lane_state().Step(LaneState::Event::kHalt);
  sock_->watch().End(conductor, sock_->fd());
  sock_->send_gate().Wake();
  sock_->anchor().SetNumber(-1);
  if (sock_->mode() == Mode::kEngine && conductor != nullptr) {
    sock_->Ref();
    SetFinished();
    sock_->settling().Post();
  }
  sock_->rx_latch.unlock();
  sock_->tx_latch.unlock();
  sock_->tally().Account();
  sock_->Unref();
}

void Ending::OnLinger() {
  {
    Latched latched(sock_);
    latches_.AssertHeld();
    timer_ = 0;
    if (!closed_.load() || finished_) return;
    finished_ = reset_ = true;
  }
  sock_->settling().Settle();
}

void Ending::Finish(bool reset) {
  Critical critical;
  if (FinishOnce(reset)) sock_->Unref();
}

bool Ending::FinishOnce(bool reset) {
  const ClosedStreams::Unlisting counted;
  ClosedStreams::Remove(sock_);
  Conductor* conductor = Conductor::IfRunning();
  sock_->tx_latch.lock();
  sock_->rx_latch.lock();
  const int number = sock_->anchor().TakeNumber();
  const bool mine = closed_.load() && number >= 0;
  sock_->watch().End(conductor, number);
  latches_.AssertHeld();
  if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
  timer_ = 0;
  sock_->EndEngine(conductor);
  const bool last = !finish_done_;
  finish_done_ = true;
  sock_->rx_latch.unlock();
  sock_->tx_latch.unlock();
  if (mine) {
    if (reset) ResetOnClose(number);
    CloseWithoutWaiting(number);
    KeepSpares();
  }
  return last;
}

void Ending::OnForkChild() {
  latches_.AssertUnshared();
  timer_ = 0;
}

}  // namespace rcsock::posix
