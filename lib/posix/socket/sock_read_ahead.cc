#include "lib/posix/socket/sock_read_ahead.h"

#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

bool ReadAhead::Any() const { return sock_->mode() == Mode::kUnread; }

std::size_t ReadAhead::Bytes() {
  if (!Any()) return 0;
  Critical critical;
  const base::LatchGuard hold(rx_);
  return Any() ? unread_.size() : 0;
}

bool ReadAhead::Failed() {
  if (!Any()) return false;
  Critical critical;
  const base::LatchGuard hold(rx_);
  return Any() && unread_.Failed();
}

int ReadAhead::Fd() {
  Critical critical;
  const base::LatchGuard hold(rx_);
  return Any() && (unread_.size() > 0 || unread_.Failed()) ? unread_.fd() : -1;
}

int ReadAhead::HeldFd() {
  rx_.AssertHeld();
  return Any() ? unread_.fd() : -1;
}

int ReadAhead::TakeError() {
  Critical critical;
  const base::LatchGuard hold(rx_);
  return Any() ? TakeErrorLatched() : 0;
}

int ReadAhead::TakeErrorLatched() {
  rx_.AssertHeld();
  const int error = unread_.TakeError();
  if (unread_.size() == 0) EndLatched();
  return error;
}

void ReadAhead::EndLatched() {
  rx_.AssertHeld();
  sock_->rx_latch.AssertHeld();
  if (!Any()) return;
  unread_.Close();
  sock_->SetUnread(false);
}

void ReadAhead::Drop() {
  Critical critical;
  const base::LatchGuard hold(rx_);
  EndLatched();
}

bool ReadAhead::Inherit(int memory) {
  rx_.AssertUnshared();
  sock_->rx_latch.AssertUnshared();
  if (!unread_.Open(memory)) return false;
  sock_->peer().SetConnected();
  sock_->anchor().SetInode(unread_.socket());
  sock_->anchor().SetCame(unread_.came_ns());
  sock_->tally().Inherit();
  if (sock_->holders().number() < 0) {
    // The process that started this program may read, too.
    sock_->search().SetReason(base::Reason::kPinnedExec);
    sock_->lane_state().Step(LaneState::Event::kPin);
    sock_->holders().GiveAway();
  }
  sock_->SetUnread(true);
  return true;
}

}  // namespace rcsock::posix
