// How a stream ends: closed, lost, or left to the end of the process.

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

// What SO_LINGER asks for is done once no latch is held: until then the number
// is not the last.  Returns the last one.  Returns -1 without room for another
// number, and no thread waits then.
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
int Sock::LeaveKeptLatched() {
  ClosedStreams::Remove(this);
  const int number = anchor_.TakeNumber();
  watch_.End(Conductor::IfRunning(), number);
  return number;
}

bool Sock::EndsOn(std::uint16_t port) {
  Latched latched(this);
  if (fd() < 0 || stream_ == nullptr || (!finished_ && !stream_->PeerEnded())) {
    return false;
  }
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  // The port is at one place in both families.
  return ::syscall(SYS_getsockname, fd(), &own, &length) == 0 &&
         reinterpret_cast<const sockaddr_in*>(&own)->sin_port == port;
}

// One close of a stream's last number.
struct Sock::Closing {
  // Closes the number.  `held`: the connection goes on by another.
  void Close(bool held) {
    result = CloseNumber(number, next, held);
    error = errno;
  }
  void End(Sock* sock, bool held) {
    sock->noted_.Leave(number);
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

int Sock::CloseLast(int number, const Successor& next) {
  Critical critical;
  const base::NoCancel no_cancel;
  if (int left; LeaveToCalls(number, next, &left)) return left;
  if (!claim_.LeaveToCopies()) claim_.Lose();
  closed_.store(true, std::memory_order_seq_cst);
  lane_state_.Step(LaneState::Event::kHalt);
  const bool sought = lane_state_.Seeking();
  Conductor* const conductor = Conductor::IfRunning();
  const bool background = conductor != nullptr && conductor->OnThread();
  // For a stream on TCP the kernel's close does what SO_LINGER asks for.  No
  // latch is held then, so its option matters to nobody here.
  const bool kernels = !EndCalls(number, sought, conductor) &&
                       mode() == Mode::kPlain && !background;
  Closing closing{number, next, conductor,
                  kernels ? linger{} : LingerOf(number)};
  // The conductor's thread, which closes what was closed while in use, does not
  // wait.
  const bool waits = Waits(closing.asked) && holders_.EndHere() && !background;
  const int lingering =
      Waits(closing.asked) ? CopyToLinger(number, holders_.EndHere()) : -1;
  bool late = false;
  {
    Latched latched(this);
    // A thread that gave the search up meanwhile had not yet seen that the
    // stream is closed.
    lane_state_.Step(LaneState::Event::kHalt);
    WakeHeld();
    if (mode() == Mode::kEngine && stream_ != nullptr &&
        closing.conductor != nullptr) {
      EndsNothingLatched() ? CloseSharedLatched(closing)
                           : CloseKeptLatched(closing);
    } else {
      if (mode() == Mode::kUnread && read_ahead_.Held().size() > 0 &&
          holders_.EndHere()) {
        ResetOnClose(number);
      }
      noted_.Leave(number);
      late = kernels;
      if (!late) closing.Close(false);
      anchor_.SetNumber(-1);
    }
  }
  if (late) closing.Close(false);
  if (closing.over >= 0) {
    ResetOnClose(closing.over);
    base::CloseRaw(closing.over);
    KeepSpares();
  }
  tally_.Account();
  if (lingering >= 0 && waits) Linger(lingering, closing.asked.l_linger);
  // The number may be the last one all the same: others may have let go
  // meanwhile.
  if (lingering >= 0 && !waits) base::CloseElsewhere(lingering);
  Unref();
  errno = closing.error;
  return closing.result;
}

// TryAdopt has been before, or finds the stream closed.  The registrations of a
// stream that has just been adopted are still the kernel's.  The conductor may
// keep the open file, and the kernel's sets would then report a closed stream.
// They would also while the conductor makes a call for a stream that seeks.
bool Sock::EndCalls(int number, bool sought, Conductor* conductor) {
  tx_latch.lock();
  const bool adopted = mode() == Mode::kEngine;
  tx_latch.unlock();
  Registrations::Get().Drop(this, -1, adopted || sought ? number : -1);
  if (lane_state_.Step(LaneState::Event::kStop) && conductor != nullptr) {
    conductor->Cancel(this);
  }
  anchor_.AwaitBorrowers();
  return adopted;
}

bool Sock::EndsNothingLatched() const {
  return !holders_.EndHere() && lane_ == nullptr &&
         stream_->tx() == stream::Tx::kRaw &&
         stream_->rx() == stream::Rx::kRaw && !stream_->WantsAnchorWrite();
}

// Neither a reset nor a shutdown may follow from what was read ahead here.
void Sock::CloseSharedLatched(Closing& closing) {
  watch_.End(closing.conductor, fd());
  closing.End(this, true);
  anchor_.SetNumber(-1);
  Ref();  // until Finish
  finished_ = true;
  PostSettle();
}

// The kernel's close would end the stream before the peer has everything.  So
// the conductor keeps the connection under another number until then.  Unread
// bytes count also where the kernel still has them: a FIN would come before the
// reset that the kernel's close makes of them.
void Sock::CloseKeptLatched(Closing& closing) {
  int unread = 0;
  if (stream_->rx() == stream::Rx::kRaw && holders_.EndHere() &&
      (stream_->AtKernel() || stream_->Ahead() != 0)) {
    ::syscall(SYS_ioctl, closing.number, FIONREAD, &unread);
  }
  const bool reset =
      (closing.asked.l_onoff != 0 && closing.asked.l_linger == 0) ||
      (unread > 0 && static_cast<std::size_t>(unread) > stream_->Ahead());
  watch_.End(closing.conductor, fd());
  int kept = base::CopyHighForParent(closing.number);
  if (kept < 0) kept = UseSpare(closing.number);
  // What is owed and cannot be kept is lost, so the end is not an orderly one.
  if (kept < 0 && stream_->WantsAnchorWrite() && holders_.EndHere()) {
    ResetOnClose(closing.number);
  }
  closing.End(this, kept >= 0);
  anchor_.SetNumber(kept);
  Ref();  // until Finish
  if (kept >= 0) {
    ClosedStreams::Add(this);
    watch_.Begin(closing.conductor, kept, Share(), EPOLLIN);
  }
  notice_.Tell(
      lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller, 0);
  stream_->Close(reset);
  stream_->Progress();
  HandleChanges();
  WakeRx();
  WakeTx();
  if (kept >= 0 && finished_ && reset_) {
    closing.over = LeaveKeptLatched();
  } else if (kept < 0) {
    // Out of descriptors: the connection ends now.  The peer takes what has
    // landed in its ring, as after a kill.
    finished_ = true;
    PostSettle();
  } else {
    BoundCloseLatched(closing.conductor);
  }
}

// A peer that never reads must not keep the connection for ever.
void Sock::BoundCloseLatched(Conductor* conductor) {
  close_timer_ =
      conductor->After(60'000, [self = Share()] { self->OnLinger(); });
  if (!stream_->AwaitsLanding()) return;
  conductor->After(250, [self = Share()] {
    Critical within;
    Latched latched(self.get());
    if (self->finished_ || self->stream_ == nullptr) return;
    self->stream_->Hurry();
    self->HandleChanges();
  });
}

// The application's close has already waited for as long as it was to.
void Sock::CloseWithoutWaiting(int number) const {
  if (!Waits(LingerOf(number))) return base::CloseRaw(number);
  // Other holders of the connection have the option, too.
  if (!holders_.EndHere()) return base::CloseElsewhere(number);
  SetLinger(number, false, 0);
  base::CloseRaw(number);
}

void Sock::Linger(int number, int seconds) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  constexpr long kLongestSleepNs = 20'000'000;
  const std::uint64_t deadline =
      base::NowNs() + static_cast<std::uint64_t>(seconds) * kSecond;
  timespec brief{0, 500'000};
  for (bool interrupted = false;;) {
    {
      Latched latched(this);
      const std::uint64_t now = base::NowNs();
      // The conductor has let go of the connection, or never had it.  The rest
      // is the kernel's.
      if (finish_done_ || fd() < 0) {
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

void Sock::LoseFd(int number) {
  Critical critical;
  // A registration belongs to the open description, and outlives its number.
  // In the kernel's set it could then not be moved, so such a stream stays on
  // TCP.
  if (mode() == Mode::kPlain && Registrations::Get().Named(this, number)) {
    lane_state_.Step(LaneState::Event::kPin);
    reason_ = Reason::kPinnedOption;
  }
  // Of two closing threads each looks, with the latches, behind its claim.  The
  // second thread's number has not been chosen by the first, or it finds that
  // it has.
  Latched latched(this);
  if (fd() != number) {
    LeaveNumber(number, this);
    return;
  }
  const int other = LeaveNumberForAny(number, this);
  anchor_.SetNumber(other);
  watch_.Move(Conductor::IfRunning(), number, other, Share());
}

void Sock::Vanished() {
  Critical critical;
  if (mode() == Mode::kEngine) claim_.Lose();
  closed_.store(true, std::memory_order_seq_cst);
  Registrations::Get().Drop(this, -1, -1);
  lane_state_.Step(LaneState::Event::kHalt);
  Conductor* conductor = Conductor::IfRunning();
  if (lane_state_.Step(LaneState::Event::kStop) && conductor != nullptr) {
    conductor->Cancel(this);
  }
  tx_latch.lock();
  rx_latch.lock();
  lane_state_.Step(LaneState::Event::kHalt);
  watch_.End(conductor, fd());
  WakeHeld();
  anchor_.SetNumber(-1);
  if (mode() == Mode::kEngine && conductor != nullptr) {
    Ref();
    finished_ = true;
    PostSettle();
  }
  rx_latch.unlock();
  tx_latch.unlock();
  tally_.Account();
  Unref();
}

void Sock::OnLinger() {
  {
    Latched latched(this);
    close_timer_ = 0;
    if (!closed_.load() || finished_) return;
    finished_ = reset_ = true;
  }
  Settle();
}

void Sock::Finish(bool reset) {
  Critical critical;
  if (FinishOnce(reset)) Unref();
}

bool Sock::FinishOnce(bool reset) {
  const ClosedStreams::Unlisting counted;
  ClosedStreams::Remove(this);
  Conductor* conductor = Conductor::IfRunning();
  tx_latch.lock();
  rx_latch.lock();
  const int number = anchor_.TakeNumber();
  const bool mine = closed_.load() && number >= 0;
  watch_.End(conductor, number);
  if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
  timer_ = 0;
  if (close_timer_ != 0 && conductor != nullptr) {
    conductor->CancelTimer(close_timer_);
  }
  close_timer_ = 0;
  if (mode() == Mode::kEngine) {
    // The kernel answers a thread that still comes with the closed number.
    if (stream_ != nullptr) {
      calls_.SetMoved(stream_->tx_off(), stream_->rx_off());
    }
    quick_.may_send = quick_.may_receive = false;
    options_.Drop();
    SetMode(Mode::kPlain);
    lane_state_.Step(LaneState::Event::kStay);
    WakeRx();
    WakeTx();
  }
  const bool last = !finish_done_;
  finish_done_ = true;
  rx_latch.unlock();
  tx_latch.unlock();
  if (mine) {
    if (reset) ResetOnClose(number);
    CloseWithoutWaiting(number);
    KeepSpares();
  }
  return last;
}

}  // namespace rcsock::posix
