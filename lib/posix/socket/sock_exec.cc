#include "lib/posix/socket/sock_exec.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <utility>

#include "lib/base/clock.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/sharing/notes.h"
#include "lib/posix/socket/linger.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_closed.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

void AcrossExec::Ask() {
  if (!sock_->lane_state().Pinned()) {
    pinned_ = true;
    reason_ = sock_->search().reason();
  }
  sock_->lane_state().Step(LaneState::Event::kPin);
  sock_->way_back().Step(Reason::kPinnedExec);
  sock_->search().SetReason(Reason::kPinnedExec);
}

bool AcrossExec::Pin(std::uint64_t deadline_ns) {
  Ask();
  const bool ok = sock_->way_back().ToPlain(Reason::kPinnedExec, deadline_ns);
  sock_->search().SetReason(Reason::kPinnedExec);
  return ok;
}

void AcrossExec::Leave() {
  sock_->noted().LeaveForExec();
  Holding* all = sock_->holders().Find();
  if (all == nullptr || left_) return;
  // No other holder is left to read the offsets.
  if ((all->count.load() & ~Holding::kMarks) < 2) return;
  sock_->holders().Mark();
  sock_->holders().TellGivenAway(all);
  left_ = true;
  if (sock_->mode() == Mode::kEngine) sock_->claim().Lose();
  all->Leave();
}

bool AcrossExec::MayBequeath() {
  return sock_->peer().connected() && !sock_->ending().closed() &&
         !sock_->holders().given_away() && !sock_->way_back().IsHalfClosed() &&
         (!sock_->lane_state().Pinned() || pinned_) &&
         !sock_->lane_state().Never() && !sock_->zero_copy().on() &&
         !sock_->noted().Travels() && sock_->holders().Make() &&
         HoldingsFd() >= 0 && !Registrations::Get().Kept(sock_);
}

void AcrossExec::SpoilForNext(int number) const {
  if (sock_->lane_state().Pinned() && !pinned_ &&
      ProcessPinned() != Reason::kSandboxed) {
    Notes(number).Spoil();
  }
}

void AcrossExec::AddHolder() { sock_->holders().Find()->count.fetch_add(1); }

int AcrossExec::Bequeath(std::uint64_t inode) {
  Holding* all = sock_->holders().Find();
  if (sock_->mode() == Mode::kEngine || all == nullptr) return -1;
  sock_->holders().Mark();
  all->role.store(sock_->peer().accepted() ? 1 : 0);
  all->inode.store(inode);
  return sock_->holders().number();
}

void AcrossExec::Failed() {
  sock_->noted().ExecFailed();
  if (left_) {
    left_ = false;
    if (Holding* all = sock_->holders().Find()) all->count.fetch_add(1);
  }
  // The exec has failed, and the engine still has a stream that was lost for
  // the children.
  if (sock_->mode() == Mode::kEngine) {
    Latched latched(sock_);
    if (sock_->mode() == Mode::kEngine) sock_->claim().Keep();
  }
  if (!pinned_) return;
  pinned_ = false;
  sock_->search().SetReason(reason_);
  sock_->lane_state().Step(LaneState::Event::kUnpin);
  if (sock_->peer().connected() && !sock_->search().Spent() &&
      !sock_->way_back().IsHalfClosed()) {
    sock_->search().Later();
    sock_->search().Allow();
  }
}

// The kernel itself resets a connection that it has.
bool AcrossExec::ResetsLatched() const {
  AssertLatched(sock_);
  if (sock_->engine() == nullptr || sock_->fd() < 0 ||
      !sock_->holders().EndHere()) {
    return false;
  }
  if (sock_->engine()->Untaken()) return true;
  const linger asked = LingerOf(sock_->fd());
  return asked.l_onoff != 0 && asked.l_linger == 0;
}

bool AcrossExec::Resets() const {
  Latched latched(sock_);
  return ResetsLatched();
}

void AcrossExec::SeekNoMore() {
  Latched latched(sock_);
  LaneState& state = sock_->lane_state();
  state.Step(LaneState::Event::kHalt);
  state.Step(LaneState::Event::kStop);
}

void AcrossExec::ResetAtExit() {
  Latched latched(sock_);
  const bool untaken = sock_->mode() == Mode::kUnread &&
                       sock_->read_ahead().Held().size() > 0 &&
                       sock_->holders().EndHere();
  // The kernel resets by itself.  A reset alone is a crash to the peer, which
  // takes what has landed, and an end behind that.
  if (ResetsLatched() || untaken) {
    if (sock_->mode() == Mode::kEngine) sock_->engine()->TellReset();
    ResetOnClose(sock_->fd());
  }
}

// Returns what the stream waits for, as events of poll; 0: nothing.
short AcrossExec::FlushLatched(std::uint64_t deadline_ns, bool last) {
  AssertLatched(sock_);
  if (sock_->engine() == nullptr || sock_->fd() < 0) {
    return 0;
  }
  stream::Stream& stream = *sock_->engine();
  // What is staged for a peer that has not agreed yet, and may never have had
  // the lane, is still TCP's to deliver.
  stream.EndSoon();
  stream.Progress();
  const bool late = base::NowNs() >= deadline_ns;
  if (stream.WantsAnchorWrite()) {
    if (late && sock_->holders().EndHere()) MakeReset(last);
    return late ? 0 : POLLOUT;
  }
  if (late) return 0;
  // What the peer sends once more is unread to the kernel, which would reset.
  if (stream.Ahead() != 0) return POLLIN;
  // So is the peer's COMMIT: the kernel would drop what it has not sent.
  if (stream.Switching()) return POLLIN;
  // The kernel would end this end first, and keep its addresses for a minute.
  const bool second = stream.PeerEnded() && !stream.Untaken() &&
                      sock_->holders().EndHere() &&
                      AskTcpState(sock_->fd()) == kTcpEstablished &&
                      ClosedStreams::MayAwaitEnds(deadline_ns);
  return second ? POLLRDHUP : 0;
}

void AcrossExec::Flush(std::uint64_t deadline_ns, bool last) {
  Critical critical;
  for (;;) {
    pollfd one{};
    {
      Latched latched(sock_);
      one = {sock_->fd(), FlushLatched(deadline_ns, last), 0};
    }
    if (one.events == 0) return;
    timespec left{0, 10'000'000};
    ::syscall(SYS_ppoll, &one, 1, &left, nullptr, 8);
  }
}

// What the kernel has not got makes the end a reset.
void AcrossExec::MakeReset(bool last) {
  AssertLatched(sock_);
  if (!last && !resets_) {
    socklen_t length = sizeof linger_;
    resets_ = ::getsockopt(sock_->fd(), SOL_SOCKET, SO_LINGER, &linger_,
                           &length) == 0;
  }
  ResetOnClose(sock_->fd());
}

void AcrossExec::TakeResetBack() {
  Latched latched(sock_);
  if (!std::exchange(resets_, false) || sock_->fd() < 0) return;
  ::syscall(SYS_setsockopt, sock_->fd(), SOL_SOCKET, SO_LINGER, &linger_,
            sizeof linger_);
}

}  // namespace rcsock::posix
