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
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

// Makes the close a reset, as for unread data.  The kernel does not know of
// these bytes.
void ResetOnClose(int number) {
  linger now{1, 0};
  ::syscall(SYS_setsockopt, number, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

// A filter of system calls may end the program for a call of rcsock's.  Within
// one the stream has no lane, and its close is its own.
linger LingerOf(int number) {
  linger option{};
  if (ProcessPinned() == Reason::kSandboxed) return option;
  socklen_t length = sizeof option;
  ::syscall(SYS_getsockopt, number, SOL_SOCKET, SO_LINGER, &option, &length);
  return option;
}

bool Waits(const linger& option) {
  return option.l_onoff != 0 && option.l_linger > 0;
}

void SetLinger(int number, bool on, int seconds) {
  const linger option{on ? 1 : 0, seconds};
  ::syscall(SYS_setsockopt, number, SOL_SOCKET, SO_LINGER, &option,
            sizeof option);
}

// Guards closed_head and the links of the list.  No thread takes another latch
// while it holds this one.
constinit base::Latch closed_latch;
constinit Sock* closed_head RC_GUARDED_BY(closed_latch) = nullptr;
// How many threads may have closed streams out of the list: by walking the
// list, or by taking a stream from the list to close its number.
constinit std::atomic<int> unlisting{0};
// How many threads have begun to walk the list.
constinit std::atomic<std::uint32_t> walks{0};
// By then a parent that had closed streams at the fork has ended them.
constinit std::atomic<std::uint64_t> parents_until_ns{0};

// Until then an exit or exec waits for the ends of its peers: one time for all.
constinit std::atomic<std::uint64_t> exits_until_ns{0};

bool MayAwaitEnds(std::uint64_t deadline_ns) {
  const std::uint64_t now = base::NowNs();
  return now < deadline_ns && now < exits_until_ns.load();
}

}  // namespace

void Sock::ResetAtLastClose() { ResetOnClose(fd()); }

void ClosedForkLock() { closed_latch.LockForFork(); }

void ClosedForkUnlock(bool child) {
  closed_latch.AssertUnshared();
  if (child) {
    if (closed_head != nullptr || unlisting.load() != 0) {
      parents_until_ns.store(base::NowNs() + kMostToEndNs);
    }
    closed_head = nullptr;  // the parent delivers these
    unlisting.store(0);
  }
  closed_latch.UnlockAfterFork(child);
}

void Sock::ListClosed(Sock** head) {
  closed_next_ = *head;
  if (closed_next_ != nullptr) closed_next_->closed_link_ = &closed_next_;
  closed_link_ = head;
  *head = this;
}

void Sock::UnlistClosed() {
  if (closed_link_ == nullptr) return;
  *closed_link_ = closed_next_;
  if (closed_next_ != nullptr) closed_next_->closed_link_ = closed_link_;
  closed_link_ = nullptr;
}

template <class Each>
void Sock::EachClosed(Each&& each) {
  Critical critical;
  Sock* done = nullptr;
  unlisting.fetch_add(1);
  walks.fetch_add(1);
  for (;;) {
    closed_latch.lock();
    Sock* sock = closed_head;
    if (sock == nullptr) {
      // If an exec fails, the streams are still to be flushed at exit.
      closed_head = done;
      if (done != nullptr) done->closed_link_ = &closed_head;
      closed_latch.unlock();
      unlisting.fetch_sub(1);
      return;
    }
    sock->UnlistClosed();
    sock->ListClosed(&done);
    sock->Ref();
    closed_latch.unlock();
    each(sock);
    sock->Unref();
  }
}

void Sock::BeginToEnd() { exits_until_ns.store(base::NowNs() + kMostToEndNs); }

void Sock::FlushClosed(std::uint64_t deadline_ns, bool last) {
  for (;;) {
    // A thread that walks the list (bind, or another exec) has streams that
    // this thread does not find.  Either that walk is counted in `unlisting`
    // here, or it had put all back before, or it begins later, which `walks`
    // tells.
    const std::uint32_t before = walks.load();
    const bool alone = unlisting.load() == 0;
    EachClosed([&](Sock* sock) { sock->FlushAtExit(deadline_ns, last); });
    if (alone && walks.load() == before + 1) return;
    if (base::NowNs() >= deadline_ns) return;
    base::SleepThrough(100'000);
  }
}

// Returns the number to close; the conductor finds the rest of the stream
// without a number.  The reset of a closed stream is due, and waits for
// nothing.  The caller makes the reset before close() returns, so that the
// addresses are as free as TCP leaves them.
int Sock::LeaveKeptLatched() {
  closed_latch.lock();
  UnlistClosed();
  closed_latch.unlock();
  Conductor* conductor = Conductor::IfRunning();
  const int number = fd_.exchange(-1, std::memory_order_relaxed);
  if (watched_ && conductor != nullptr) conductor->Unwatch(number);
  watched_ = false;
  return number;
}

bool Sock::EndsOnPort(std::uint16_t port) {
  if (InBorrowedMemory()) return false;
  bool found = false;
  EachClosed([&](Sock* sock) {
    Latched latched(sock);
    if (found || sock->fd() < 0 || sock->stream_ == nullptr ||
        (!sock->finished_ && !sock->stream_->PeerEnded())) {
      return;
    }
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    // The port is at one place in both families.
    found = ::syscall(SYS_getsockname, sock->fd(), &own, &length) == 0 &&
            reinterpret_cast<const sockaddr_in*>(&own)->sin_port == port;
  });
  return found || unlisting.load() != 0 ||
         base::NowNs() < parents_until_ns.load();
}

int Sock::CloseLast(int number, const Successor& next) {
  Critical critical;
  const base::NoCancel no_cancel;
  if (int left; LeaveToCalls(number, next, &left)) return left;
  if (!LeaveToHidden()) LoseForHolders();
  closed_.store(true, std::memory_order_seq_cst);
  lane_state_.Step(LaneState::Event::kHalt);
  Conductor* conductor = Conductor::IfRunning();
  // TryAdopt has been before, or finds the stream closed.  The registrations of
  // a stream that has just been adopted are still the kernel's.  The conductor
  // may keep the open file, and the kernel's sets would then report a closed
  // stream.  They would also while the conductor makes a call for a stream that
  // seeks.
  const bool sought = lane_state_.Seeking();
  // What SO_LINGER asks for is done once no latch is held: until then this
  // number is not the last.  Without room for another number no thread waits.
  // The conductor's thread, which closes what was closed while in use, does not
  // wait either.
  const linger asked = LingerOf(number);
  int lingering = -1;
  const bool waits = Waits(asked) && EndsHere() &&
                     (conductor == nullptr || !conductor->OnThread());
  if (Waits(asked)) {
    lingering = base::CopyHighForParent(number);
    if (lingering < 0 && EndsHere()) SetLinger(number, false, 0);
  }
  tx_latch.lock();
  const bool adopted = mode() == Mode::kEngine;
  tx_latch.unlock();
  Registrations::Get().Drop(this, -1, adopted || sought ? number : -1);
  if (lane_state_.Step(LaneState::Event::kStop) && conductor != nullptr) {
    conductor->Cancel(this);
  }
  AwaitBorrowers();
  tx_latch.lock();
  rx_latch.lock();
  // A thread that gave the search up meanwhile had not yet seen that the stream
  // is closed.
  lane_state_.Step(LaneState::Event::kHalt);
  WakeHeld();
  int result, error;
  int over = -1;
  const auto end = [&](bool held) {
    LeaveShare(number);
    result = CloseNumber(number, next, held);
    error = errno;
  };
  if (mode() == Mode::kEngine && stream_ != nullptr && conductor != nullptr &&
      !EndsHere() && lane_ == nullptr && stream_->tx() == stream::Tx::kRaw &&
      stream_->rx() == stream::Rx::kRaw && !stream_->WantsAnchorWrite()) {
    // Another process holds the connection, too.  This close ends nothing, and
    // neither a reset nor a shutdown may follow from what was read ahead here.
    if (watched_) conductor->Unwatch(fd());
    watched_ = false;
    end(true);
    fd_.store(-1, std::memory_order_relaxed);
    Ref();  // until Finish
    finished_ = true;
    PostSettle();
  } else if (mode() == Mode::kEngine && stream_ != nullptr &&
             conductor != nullptr) {
    // The kernel's close would end the stream before the peer has everything.
    // So the conductor keeps the connection under another number until then.
    // Unread bytes count also where the kernel still has them: a FIN would come
    // before the reset that the kernel's close makes of them.
    int unread = 0;
    if (stream_->rx() == stream::Rx::kRaw && EndsHere() &&
        (stream_->AtKernel() || stream_->Ahead() != 0)) {
      ::syscall(SYS_ioctl, number, FIONREAD, &unread);
    }
    const bool reset =
        (asked.l_onoff != 0 && asked.l_linger == 0) ||
        (unread > 0 && static_cast<std::size_t>(unread) > stream_->Ahead());
    if (watched_) conductor->Unwatch(fd());
    watched_ = false;
    int kept = base::CopyHighForParent(number);
    if (kept < 0) kept = UseSpare(number);
    // What is owed and cannot be kept is lost, so the end is not an orderly
    // one.
    if (kept < 0 && stream_->WantsAnchorWrite() && EndsHere()) {
      ResetOnClose(number);
    }
    end(kept >= 0);
    fd_.store(kept, std::memory_order_relaxed);
    Ref();  // until Finish
    if (kept >= 0) {
      closed_latch.lock();
      ListClosed(&closed_head);
      closed_latch.unlock();
      watch_events_ = EPOLLIN;
      watched_ = conductor->Watch(kept, std::shared_ptr<AnchorWatcher>(Share()),
                                  watch_events_);
    }
    TellLane(
        lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller, 0);
    stream_->Close(reset);
    stream_->Progress();
    HandleChanges();
    WakeRx();
    WakeTx();
    if (kept >= 0 && finished_ && reset_) {
      over = LeaveKeptLatched();
    } else if (kept < 0) {
      // Out of descriptors: the connection ends now.  The peer takes what has
      // landed in its ring, as after a kill.
      finished_ = true;
      PostSettle();
    } else {
      // A peer that never reads must not keep the connection for ever.
      close_timer_ =
          conductor->After(60'000, [self = Share()] { self->OnLinger(); });
      if (stream_->AwaitsLanding()) {
        conductor->After(250, [self = Share()] {
          Critical within;
          Latched latched(self.get());
          if (self->finished_ || self->stream_ == nullptr) return;
          self->stream_->Hurry();
          self->HandleChanges();
        });
      }
    }
  } else {
    if (mode() == Mode::kUnread && unread_.size() > 0 && EndsHere()) {
      ResetOnClose(number);
    }
    end(false);
    fd_.store(-1, std::memory_order_relaxed);
  }
  rx_latch.unlock();
  tx_latch.unlock();
  if (over >= 0) {
    ResetOnClose(over);
    base::CloseRaw(over);
    KeepSpares();
  }
  Account();
  if (lingering >= 0 && waits) Linger(lingering, asked.l_linger);
  // The number may be the last one all the same: others may have let go
  // meanwhile.
  if (lingering >= 0 && !waits) base::CloseElsewhere(lingering);
  Unref();
  errno = error;
  return result;
}

// The application's close has already waited for as long as it was to.
void Sock::CloseWithoutWaiting(int number) const {
  if (!Waits(LingerOf(number))) return base::CloseRaw(number);
  // Other holders of the connection have the option, too.
  if (!EndsHere()) return base::CloseElsewhere(number);
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
  Conductor* conductor = Conductor::IfRunning();
  if (watched_ && conductor != nullptr) conductor->Unwatch(number);
  set_fd(other);
  if (watched_ && conductor != nullptr) {
    watched_ = conductor->Watch(other, std::shared_ptr<AnchorWatcher>(Share()),
                                watch_events_);
  }
}

void Sock::Vanished() {
  Critical critical;
  if (mode() == Mode::kEngine) LoseForHolders();
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
  if (watched_ && conductor != nullptr) conductor->Unwatch(fd());
  watched_ = false;
  WakeHeld();
  set_fd(-1);
  if (mode() == Mode::kEngine && conductor != nullptr) {
    Ref();
    finished_ = true;
    PostSettle();
  }
  rx_latch.unlock();
  tx_latch.unlock();
  Account();
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
  unlisting.fetch_add(1);
  closed_latch.lock();
  UnlistClosed();
  closed_latch.unlock();
  Conductor* conductor = Conductor::IfRunning();
  tx_latch.lock();
  rx_latch.lock();
  const int number = fd_.exchange(-1);
  const bool mine = closed_.load() && number >= 0;
  if (watched_ && conductor != nullptr && number >= 0) {
    conductor->Unwatch(number);
  }
  watched_ = false;
  if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
  timer_ = 0;
  if (close_timer_ != 0 && conductor != nullptr) {
    conductor->CancelTimer(close_timer_);
  }
  close_timer_ = 0;
  if (mode() == Mode::kEngine) {
    // The kernel answers a thread that still comes with the closed number.
    if (stream_ != nullptr) {
      tx_raw_.store(stream_->tx_off(), std::memory_order_relaxed);
      rx_raw_.store(stream_->rx_off(), std::memory_order_relaxed);
    }
    quick_.may_send = quick_.may_receive = false;
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
  unlisting.fetch_sub(1);
  if (last) Unref();
}

void Sock::TakeResetBack() {
  Latched latched(this);
  if (!std::exchange(exec_resets_, false) || fd() < 0) return;
  ::syscall(SYS_setsockopt, fd(), SOL_SOCKET, SO_LINGER, &exec_linger_,
            sizeof exec_linger_);
}

void Sock::TakeResetsBack() {
  EachClosed([](Sock* sock) { sock->TakeResetBack(); });
}

// The kernel knows of what is its own.
bool Sock::ResetsAtCloseLatched() const {
  if (mode() != Mode::kEngine || stream_ == nullptr || fd() < 0 ||
      !EndsHere()) {
    return false;
  }
  if (stream_->Untaken()) return true;
  const linger asked = LingerOf(fd());
  return asked.l_onoff != 0 && asked.l_linger == 0;
}

bool Sock::ResetsAtClose() {
  Latched latched(this);
  return ResetsAtCloseLatched();
}

void Sock::ResetAtExit() {
  Latched latched(this);
  const bool untaken =
      mode() == Mode::kUnread && unread_.size() > 0 && EndsHere();
  // The kernel resets by itself.  A reset alone is a crash to the peer, which
  // takes what has landed, and an end behind that.
  if (ResetsAtCloseLatched() || untaken) {
    if (mode() == Mode::kEngine) stream_->TellReset();
    ResetOnClose(fd());
  }
}

void Sock::FlushAtExit(std::uint64_t deadline_ns, bool last) {
  Critical critical;
  for (;;) {
    tx_latch.lock();
    rx_latch.lock();
    bool owed = false;
    bool ahead = false;
    bool second = false;
    if (mode() == Mode::kEngine && stream_ != nullptr && fd() >= 0) {
      // What is staged for a peer that has not agreed yet, and may never have
      // had the lane, is still TCP's to deliver.
      if (stream_->tx() == stream::Tx::kProp) {
        stream_->Demote(Reason::kShortLived, false);
      }
      stream_->Progress();
      // What the peer sends once more is unread to the kernel, which would
      // reset.
      owed = stream_->WantsAnchorWrite();
      ahead = stream_->Ahead() != 0;
      // The kernel would end this end first, and keep its addresses for a
      // minute.
      second = stream_->PeerEnded() && !stream_->Untaken() && EndsHere() &&
               AskTcpState(fd()) == kTcpEstablished &&
               MayAwaitEnds(deadline_ns);
    }
    const bool late = base::NowNs() >= deadline_ns;
    if (owed && late && EndsHere()) {
      if (!last && !exec_resets_) {
        socklen_t length = sizeof exec_linger_;
        exec_resets_ = ::getsockopt(fd(), SOL_SOCKET, SO_LINGER, &exec_linger_,
                                    &length) == 0;
      }
      ResetOnClose(fd());
    }
    rx_latch.unlock();
    tx_latch.unlock();
    if ((!owed && !ahead && !second) || late) return;
    const int awaited = owed ? POLLOUT : ahead ? POLLIN : POLLRDHUP;
    pollfd one{fd(), static_cast<short>(awaited), 0};
    timespec left{0, 10'000'000};
    ::syscall(SYS_ppoll, &one, 1, &left, nullptr, 8);
  }
}

}  // namespace rcsock::posix
