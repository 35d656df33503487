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

}  // namespace rcsock::posix
