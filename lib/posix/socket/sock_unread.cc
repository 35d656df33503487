// Bytes that were read ahead of the application, and that the holders of the
// connection share (Mode::kUnread).

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

bool Sock::SpillLatched() {
  if (!stream_->OnlyStash()) return false;
  const int error = stream_->ErrorBehindStash();
  stream::ByteQueue bytes = stream_->TakeStash();
  const iovec all{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  if (!read_ahead_.Held().Make(&all, 1, anchor_.inode(), anchor_.came_ns(),
                               error)) {
    stream_->GiveStash(std::move(bytes));
    return false;
  }
  unread_streams.fetch_add(1, std::memory_order_relaxed);
  RCSOCK_LOG(1, "fd %d: %zu unread bytes are shared", fd(), bytes.size());
  return true;
}

// The analysis wants both latches for a change of the mode.
void Sock::SetUnread(bool unread) RC_NO_LOCK_CHECK {
  RC_DCHECK(mode() != Mode::kEngine);
  unread_streams.fetch_add(unread ? 1 : -1, std::memory_order_relaxed);
  if (unread) {
    lane_state_.Step(LaneState::Event::kHalt);
  } else {
    if (Holding* const all = holders_.Find()) all->unread.store(0);
    if (peer_.connected() && !search_.Spent() && !ending_.closed() &&
        !lane_state_.Pinned() && stream_ != nullptr) {
      search_.Later();
      lane_state_.Step(LaneState::Event::kConnect);
    }
  }
  mode_.Write(tx_latch, rx_latch)
      .store(unread ? Mode::kUnread : Mode::kPlain, std::memory_order_seq_cst);
}

// One call that reads bytes which were read ahead and are shared.
struct Sock::UnreadCall {
  IoResult Fail(int why) const {
    errno = why;
    return IoResult::Done(ssize_t{-1});
  }
  bool nothing() const { return n == 0 && *done == 0; }

  const int number;
  const iovec* const iov;
  const int count;
  const std::size_t total;
  const int flags;
  std::size_t* const done;
  std::size_t n = 0;    // what this look has taken
  int error = 0;        // what lies behind, and is told now
  bool failed = false;  // an error lies behind, to be told later
  bool fault = false;
  bool behind = false;  // what the kernel has comes before the error
};

void Sock::TakeUnread(UnreadCall& call) {
  if (mode() != Mode::kUnread || call.total <= *call.done) return;
  IovRest rest(call.iov, call.count);
  rest.Skip(*call.done);
  const bool drop = (call.flags & MSG_TRUNC) != 0;
  call.n = read_ahead_.Held().Take(drop ? nullptr : rest.iov(), rest.count(),
                                   call.total - *call.done,
                                   (call.flags & MSG_PEEK) != 0);
  call.fault = base::TakeFault();
  if (read_ahead_.Held().size() != 0 || call.fault) return;
  int more = 0;
  if (call.nothing() && read_ahead_.Held().Failed() &&
      ::syscall(SYS_ioctl, call.number, FIONREAD, &more) == 0 && more > 0) {
    call.behind = true;
    return;
  }
  if (call.nothing()) call.error = read_ahead_.Held().TakeError();
  call.failed = read_ahead_.Held().Failed();
  if (!call.failed) read_ahead_.EndLatched();
}

void Sock::CountUnread(const UnreadCall& call, ssize_t n) {
  if ((call.flags & MSG_PEEK) != 0) return;
  calls_.Add(PlainCalls::kRx, static_cast<std::uint64_t>(n));
}

IoResult Sock::RecvBehindUnread(const UnreadCall& call) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(call.iov);
  message.msg_iovlen = static_cast<std::size_t>(call.count);
  const ssize_t n =
      ::syscall(SYS_recvmsg, call.number, &message, call.flags | MSG_DONTWAIT);
  if (n <= 0) return IoResult::Retry();  // another thread's by now
  CountUnread(call, n);
  return IoResult::Done(n);
}

IoResult Sock::UnreadRecv(int number, const iovec* iov, int count,
                          std::size_t total, int flags, std::size_t* done) {
  Critical critical;
  UnreadCall call{number, iov, count, total, flags, done};
  rx_latch.lock();
  // With the last of these bytes the stream may take a lane.  Its offsets are
  // to have all that is counted below.
  const InKernel in(this);
  if (!IsAt(number)) {
    rx_latch.unlock();
    return IoResult::Gone();
  }
  TakeUnread(call);
  rx_latch.unlock();
  if (call.behind) return RecvBehindUnread(call);
  if (call.error != 0) return call.Fail(call.error);
  if (call.nothing() && call.fault) return call.Fail(EFAULT);
  if (call.n == 0) {
    const bool again = !call.failed && !call.fault &&
                       (total > *done || mode() != Mode::kUnread);
    return again ? IoResult::Retry() : IoResult::Done(*done);
  }
  CountUnread(call, static_cast<ssize_t>(call.n));
  *done += call.n;
  if (*done == total || call.fault) return IoResult::Done(*done);
  if ((flags & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL)
    return IoResult::Retry();
  // The kernel's bytes go along, as they would in one queue: a reader may take
  // a short answer for the end of what there is.
  int more = 0;
  if (::syscall(SYS_ioctl, number, FIONREAD, &more) == 0 && more > 0) {
    const ssize_t n = RecvRest(number, iov, count, *done, flags | MSG_DONTWAIT);
    if (n > 0) {
      CountUnread(call, n);
      *done += static_cast<std::size_t>(n);
    }
  }
  return IoResult::Done(*done);
}

}  // namespace rcsock::posix
