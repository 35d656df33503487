// The calls of a stream that the engine owns: sending and receiving.

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "lib/base/real.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/recv_in_place.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

void RaiseSigpipe() {
  const int saved = errno;
  const long pid = ::syscall(SYS_getpid);
  const long tid = ::syscall(SYS_gettid);
  // The kernel reports this signal as one by kill(), not by tkill().
  siginfo_t info{};
  info.si_signo = SIGPIPE;
  info.si_code = SI_USER;
  info.si_pid = static_cast<pid_t>(pid);
  info.si_uid = static_cast<uid_t>(::syscall(SYS_getuid));
  if (::syscall(SYS_rt_tgsigqueueinfo, pid, tid, SIGPIPE, &info) != 0) {
    ::syscall(SYS_tgkill, pid, tid, SIGPIPE);
  }
  errno = saved;
}

namespace {

// Makes `call(message)` for all bytes from `skip` on; a message takes only so
// many pieces of a long vector.  Returns the bytes, or what the first call
// returned.  If the last call failed, stores its errno in *error.
template <class Call>
ssize_t ForRest(const iovec* iov, int count, std::size_t skip, int* error,
                Call&& call) {
  ssize_t done = 0;
  for (;;) {
    IovRest rest(iov, count);
    rest.Skip(skip + static_cast<std::size_t>(done));
    const std::size_t wanted = rest.total();
    if (wanted == 0) return done;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(rest.iov());
    message.msg_iovlen = static_cast<std::size_t>(rest.count());
    const ssize_t n = call(&message);
    if (n < 0) *error = errno;
    if (n <= 0) return done > 0 ? done : n;
    done += n;
    if (static_cast<std::size_t>(n) < wanted) return done;
  }
}

}  // namespace

ssize_t Sock::SendRest(int fd, const iovec* iov, int count, std::size_t skip,
                       int flags) {
  int error = 0;
  const ssize_t n =
      ForRest(iov, count, skip, &error, [&](const msghdr* message) {
        // The call has sent something, which is its result: no signal.
        return real::sendmsg(fd, message, (flags & ~kLater) | MSG_NOSIGNAL);
      });
  if (error != 0) KeepError(fd, error);
  return n;
}

ssize_t Sock::RecvRest(int fd, const iovec* iov, int count, std::size_t skip,
                       int flags) {
  if (AtMarkOf(fd)) return 0;
  int error = 0;
  const ssize_t n = ForRest(iov, count, skip, &error, [&](msghdr* message) {
    return real::recvmsg(fd, message, flags);
  });
  if (error != 0) KeepError(fd, error);
  return n;
}

// A stream on TCP keeps the error as one behind bytes that were read ahead,
// without any such bytes.
void Sock::KeepError(int fd, int error) {
  if (!stream::IsToldOnce(error)) return;
  search_.Cancel();
  Latched latched(this);
  if (!IsAt(fd)) return;
  switch (mode()) {
    case Mode::kEngine:
      stream_->KeepError(error);
      HandleChanges();
      return;
    case Mode::kUnread:
      read_ahead_.Held().KeepError(error);
      return;
    case Mode::kPlain:
      if (read_ahead_.Held().Make(nullptr, 0, SocketInode(fd), 0, error)) {
        SetUnread(true);
      }
  }
}

Sock* Sock::LookupHere(int fd) { return LookupSock(fd); }

// A child of fork gives all its connections another life.  If a handler has
// interrupted a sleep and then forked, the sleep goes on in the child for that
// connection.
bool Sock::GoneSinceToo(Wait& wait, int fd) const {
  if (wait.process == OwnPid() || !IsAt(fd)) return true;
  wait.process = OwnPid();
  wait.life = calls_.Life();
  return false;
}

// --- Sending

IoResult Sock::EngineSend(int fd, const iovec* iov, int count,
                          std::size_t total, int flags, std::size_t* done) {
  Critical critical;
  tx_latch.lock();
  CheckQuick();
  // The common case, without what waiting needs.
  if (*done == 0 && IsAt(fd) && mode() == Mode::kEngine && stream_->FastTx())
      [[likely]] {
    const ssize_t n = stream_->Write(iov, count, total);
    if (n > 0) {
      lane_tx_ += static_cast<std::uint64_t>(n);
      if (static_cast<std::size_t>(n) == total) [[likely]] {
        tx_latch.unlock();
        return IoResult::Done(n);
      }
      *done = static_cast<std::size_t>(n);
    }
  }
  if (AwaitsAnswer()) [[unlikely]] {
    tx_latch.unlock();
    search_.LookForAnswer();
    const IoResult held = send_gate_.Send(fd, iov, count, total, flags, done);
    if (!held.retry()) return held;
    tx_latch.lock();
  }
  return SendLatched(fd, iov, count, total, flags, done);
}

struct Sock::SendCall {
  // What was left behind *done at the last look.
  std::size_t left;
  IovRest rest;
  const std::size_t total;
  std::size_t* const done;
  // Of the last look: bytes, or an errno as a negative number.
  ssize_t n = -EAGAIN;
};

// Writes what the lane alone does not take: the stream is on TCP, or in a
// switch, or its lane is dead.
void Sock::WriteWithBoth(SendCall& call) {
  rx_latch.lock();
  if (stream_->FastTx()) stream_->Progress();  // a dead lane
  ssize_t& n = call.n;
  n = stream_->Write(call.rest.iov(), call.rest.count(), call.left);
  if (n > 0 && stream_->tx() != stream::Tx::kRaw) {
    lane_tx_ += static_cast<std::uint64_t>(n);
  }
  if (n < 0 && *call.done > 0) stream_->KeepError(static_cast<int>(-n));
  // If TCP took a part, or nothing, a caller that waits for the rest, or for
  // the edge, must be told when TCP takes more.
  if ((n == -EAGAIN || (n > 0 && static_cast<std::size_t>(n) < call.left)) &&
      stream_->tx() == stream::Tx::kRaw && !stream_->AwaitsRaw()) {
    watch_.WantRoom();
  }
  HandleChanges();
  if (lane_ == nullptr && n > 0 && stream_->Idle() && !lane_state_.Seeking()) {
    settling_.Post();
  }
  rx_latch.unlock();
}

// Writes what there is room for.
inline void Sock::WriteSome(SendCall& call) {
  call.left = call.total;
  if (*call.done != 0) {
    call.rest.Skip(*call.done);
    call.left = call.rest.total();
  }
  call.n = -EAGAIN;
  if (stream_->FastTx()) {
    call.n = stream_->Write(call.rest.iov(), call.rest.count(), call.left);
    if (call.n > 0) lane_tx_ += static_cast<std::uint64_t>(call.n);
  }
  if (call.n == -EAGAIN &&
      (!stream_->FastTx() || lane_->State() != base::Reason::kNone)) {
    WriteWithBoth(call);
  }
  if (call.n > 0) *call.done += static_cast<std::size_t>(call.n);
}

IoResult Sock::SendLatched(int fd, const iovec* iov, int count,
                           std::size_t total, int flags, std::size_t* done) {
  if (!IsAt(fd)) [[unlikely]] {
    tx_latch.unlock();
    return IoResult::Gone();
  }
  const bool block =
      (flags & MSG_DONTWAIT) == 0 && !nonblock.load(std::memory_order_relaxed);
  Wait wait{.life = calls_.Life(), .process = OwnPid()};
  SendCall call{total, IovRest(iov, count), total, done};
  ssize_t& n = call.n;
  for (;;) {  // the tx latch is held
    if (mode() != Mode::kEngine) {
      tx_latch.unlock();
      return IoResult::Retry();
    }
    const std::uint32_t seq = sleepers_.Seq(true);
    WriteSome(call);
    if ((*done == total && n >= 0) || (n < 0 && n != -EAGAIN)) break;
    if (!block) {
      if (!stream_->FastTx()) break;
      if (lane_->Writable() > 0 && n > 0) continue;
      starvation_.Watch();
      break;
    }
    // TCP took a part.  Only its EAGAIN makes the conductor watch for room.
    if (n > 0 && !stream_->FastTx()) continue;
    wait.part = *done > 0 || (flags & kLater) != 0;
    wait.later = (flags & kLater) != 0;
    const int w = WaitTx(wait, seq);
    if (GoneSince(wait, fd)) [[unlikely]] {
      tx_latch.unlock();
      return IoResult::Gone();
    }
    if (w == kJoinsLeft) [[unlikely]] {
      tx_latch.unlock();
      return IoResult::ClosedInUse();
    }
    if (w != 0) {
      n = w;
      break;
    }
  }
  tx_latch.unlock();
  if (*done > 0 || n == 0) return IoResult::Done(*done);
  if (n == -EPIPE && (flags & MSG_NOSIGNAL) == 0) RaiseSigpipe();
  errno = static_cast<int>(-n);
  return IoResult::Done(ssize_t{-1});
}

IoResult Sock::SendNull(int fd, int flags, std::size_t* done) {
  const IoResult result = EngineSend(fd, nullptr, 0, 0, flags, done);
  if (!result.done() || result.bytes < 0) return result;
  errno = EFAULT;
  return IoResult::Done(ssize_t{-1});
}

IoResult Sock::RecvNull(int fd, const iovec* iov, int count, int flags,
                        std::size_t* done) {
  // The address is a fault only if bytes would be put there.  Then the call
  // takes nothing.
  std::size_t room = 0;
  int good = 0;
  for (; good < count && !Null(iov + good, 1); ++good) {
    room += iov[good].iov_len;
  }
  char byte;
  const iovec one{&byte, 1};
  const int looks = (flags & ~MSG_WAITALL) | MSG_PEEK;
  IoResult seen = IoResult::Done(ssize_t{1});
  if (mode() == Mode::kEngine) {
    seen = room == 0
               ? EngineRecv(fd, &one, 1, 1, looks, done)
               : EngineRecv(fd, nullptr, 0, room + 1, looks | MSG_TRUNC, done);
  }
  if (!seen.done() || seen.bytes <= 0) return seen;
  *done = 0;
  if (static_cast<std::size_t>(seen.bytes) <= room) {
    return EngineRecv(fd, iov, good, room, flags & ~MSG_WAITALL, done);
  }
  errno = EFAULT;
  return IoResult::Done(ssize_t{-1});
}

// --- Receiving

IoResult Sock::EngineRecv(int fd, const iovec* iov, int count,
                          std::size_t total, int flags, std::size_t* done) {
  if (flags & MSG_OOB) [[unlikely]] {
    way_back_.Pin(base::Reason::kPinnedOption);
    return IoResult::Retry();
  }
  Critical critical;
  rx_latch.lock();
  CheckQuick();
  // The common case, without what waiting needs.
  constexpr int kSpecial = MSG_PEEK | MSG_WAITALL | MSG_TRUNC;
  if ((flags & kSpecial) == 0 && *done == 0 && IsAt(fd) &&
      mode() == Mode::kEngine && stream_->FastRx()) [[likely]] {
    const ssize_t n = stream_->Read(iov, count, total, false);
    if (n > 0) [[likely]] {
      lane_rx_ += static_cast<std::uint64_t>(n);
      rx_latch.unlock();
      return IoResult::Done(n);
    }
  }
  if (AwaitsAnswer()) [[unlikely]] {
    rx_latch.unlock();
    search_.LookForAnswer();
    rx_latch.lock();
  }
  return RecvLatched(fd, iov, count, total, flags, done);
}

// One call that receives.  It lives in the frame of RecvLatched, so
// cancellation destroys it, too.  It belongs to its thread.
struct Sock::RecvCall {
  RecvCall(Sock* sock, const iovec* iov, int count, std::size_t length,
           int flags, bool blocks, std::size_t* at)
      : nothing(length == 0),
        peek((flags & MSG_PEEK) != 0 || nothing),
        all((flags & MSG_WAITALL) != 0),
        drop((flags & MSG_TRUNC) != 0 && !nothing),
        block(blocks),
        total(nothing ? 1 : length),
        done(at),
        in_place(sock),
        rest(nothing ? &look : iov, nothing ? 1 : count) {}

  // Where the bytes go.
  const iovec* to() const { return drop ? nullptr : rest.iov(); }
  int pieces() const { return drop ? 0 : rest.count(); }
  // The peer's device may write into that memory while the call waits.
  bool lends() const { return block && !peek && !drop; }

  // A recv of nothing waits until there is something, as TCP's does.
  char first;
  const iovec look{&first, 1};
  const bool nothing;
  const bool peek;
  const bool all;
  const bool drop;
  const bool block;
  const std::size_t total;
  std::size_t* const done;
  Wait wait;
  RecvInPlace in_place;
  IovRest rest;
  // What was left behind *done at the last look.
  std::size_t left = 0;
  // Of the last look: bytes, 0 for the end, or an errno as a negative number.
  ssize_t n = -EAGAIN;
  // A look has seen TCP's end behind what there is: one more takes all that
  // came before it.
  bool last_look = false;
};

// Reads what the ring alone does not tell.  The stream is not on its lane in
// full, the lane is dead, or a control message lies in the ring.  No honest
// peer sends such a message now.  Progress takes such a message, and nothing
// behind the message can be read before.  Returns kDone if the call goes on.
// Holds the rx latch again on return.
IoResult::Status Sock::ReadWithBoth(RecvCall& call, int fd) {
  using Status = IoResult::Status;
  // Between two sleeps the thread counts as being in the call.
  const bool timed = call.wait.timed;
  if (timed) sleepers_.OnWord(false).fetch_add(1, std::memory_order_relaxed);
  rx_latch.unlock();
  tx_latch.lock();
  rx_latch.lock();
  if (timed) {
    const bool joins = left_.Joins(call.wait, 0);
    sleepers_.OnWord(false).fetch_sub(1, std::memory_order_relaxed);
    if (joins) [[unlikely]] {
      tx_latch.unlock();
      return Status::kClosedInUse;
    }
  }
  // A stream that has been closed meanwhile is not at its end: a look may have
  // shown bytes.
  const bool gone = GoneSince(call.wait, fd) || (!timed && !IsAt(fd));
  if (gone || mode() != Mode::kEngine) {
    tx_latch.unlock();
    return gone ? Status::kGone : Status::kRetry;
  }
  if (stream_->ReadsLane() || call.last_look) stream_->Progress();
  ssize_t& n = call.n;
  n = call.drop && !stream_->FastRx()
          ? Drop(call.left, call.peek)
          : stream_->Read(call.to(), call.pieces(), call.left, call.peek);
  if (n > 0 && !call.peek) lane_rx_ += static_cast<std::uint64_t>(n);
  if (n < 0 && *call.done > 0 && !call.peek) {
    stream_->KeepError(static_cast<int>(-n));
  }
  HandleChanges();
  if (lane_ == nullptr && stream_->Idle()) settling_.Post();
  tx_latch.unlock();
  return Status::kDone;
}

// Reads what there is.  Returns as ReadWithBoth.
inline IoResult::Status Sock::ReadSome(RecvCall& call, int fd) {
  call.left = call.total;
  if (*call.done != 0 && !call.peek) {
    call.rest.Skip(*call.done);
    call.left = call.rest.total();
  }
  if (call.all && call.lends()) call.in_place.Begin(call.to(), call.left, true);
  call.n = -EAGAIN;
  if (stream_->FastRx()) {
    call.n = stream_->Read(call.to(), call.pieces(), call.left, call.peek);
    if (call.n > 0 && !call.peek) {
      lane_rx_ += static_cast<std::uint64_t>(call.n);
    }
  }
  if (call.n == -EAGAIN && (!stream_->FastRx() || lane_->RxPendingQuick() ||
                            lane_->State() != base::Reason::kNone)) {
    const IoResult::Status status = ReadWithBoth(call, fd);
    if (status != IoResult::Status::kDone) return status;
  }
  if (call.n == -EAGAIN && rd_shut_) call.n = 0;
  if (call.n > 0) {
    *call.done =
        (call.peek ? 0 : *call.done) + static_cast<std::size_t>(call.n);
  }
  // An error takes the place of what an earlier look has seen.
  if (call.n < 0 && call.n != -EAGAIN && call.peek) *call.done = 0;
  return IoResult::Status::kDone;
}

// Returns whether the call ends with what it has, looks again at once, or
// waits.
inline Sock::Turn Sock::NextTurn(RecvCall& call) {
  const ssize_t n = call.n;
  const bool more = call.all || call.in_place.GoesOn();
  if (n >= 0 && (!more || n == 0 || *call.done == call.total)) {
    return Turn::kEnds;
  }
  if (n < 0 && (n != -EAGAIN || !call.block || (*call.done > 0 && !more))) {
    return Turn::kEnds;
  }
  if (n < 0) {
    call.last_look = false;
    return Turn::kWaits;
  }
  // The kernel's recv ends at the mark of urgent data, too.
  if (!stream_->FastRx() && anchor_.AtMark()) return Turn::kEnds;
  if (!call.peek) return Turn::kLooks;  // MSG_WAITALL: more may be there
  // A peek with MSG_WAITALL waits for all, too, whichever way the rest comes.
  // A switch may be under way, or a ring be too small and its stream on the way
  // to TCP.
  if (!call.block || rd_shut_ || stream_->EndsIn(static_cast<std::size_t>(n))) {
    return Turn::kEnds;
  }
  const bool ends = Looks(this).TcpEndsNext();
  if (ends && call.last_look) return Turn::kEnds;
  call.last_look = ends;
  return ends ? Turn::kLooks : Turn::kWaits;
}

// Waits as WaitRx does, for what the call still wants.
inline int Sock::WaitForMore(RecvCall& call, std::uint32_t seq) {
  call.wait.part = *call.done > 0;
  if (!call.all && call.lends()) {
    call.in_place.Begin(call.to(), call.left, false);
  }
  return call.n > 0                    ? WaitBehind(call.wait, seq)
         : *call.done > 0 && !call.all ? WaitRest(call.wait, seq)
                                       : WaitRx(call.wait, seq);
}

// The call leaves the engine.  It will see again what it has peeked at.
inline IoResult Sock::LeaveRecv(bool peek, IoResult::Status status,
                                std::size_t* done) {
  rx_latch.unlock();
  if (peek) *done = 0;
  return {0, status};
}

IoResult Sock::RecvLatched(int fd, const iovec* iov, int count,
                           std::size_t total, int flags, std::size_t* done) {
  using Status = IoResult::Status;
  if (!IsAt(fd)) [[unlikely]] {
    return LeaveRecv((flags & MSG_PEEK) != 0, Status::kGone, done);
  }
  const bool block =
      (flags & MSG_DONTWAIT) == 0 && !nonblock.load(std::memory_order_relaxed);
  RecvCall call(this, iov, count, total, flags, block, done);
  call.wait.life = calls_.Life();
  call.wait.process = OwnPid();
  for (;;) {  // the rx latch is held
    if (mode() != Mode::kEngine) {
      return LeaveRecv(call.peek, Status::kRetry, done);
    }
    const std::uint32_t seq = sleepers_.Seq(false);
    if (const Status status = ReadSome(call, fd); status != Status::kDone) {
      return LeaveRecv(call.peek, status, done);
    }
    const Turn turn = NextTurn(call);
    if (turn == Turn::kEnds) break;
    if (turn == Turn::kLooks) continue;
    const int w = WaitForMore(call, seq);
    if (GoneSince(call.wait, fd)) [[unlikely]] {
      return LeaveRecv(call.peek, Status::kGone, done);
    }
    if (w == kJoinsLeft) [[unlikely]] {
      return LeaveRecv(call.peek, Status::kClosedInUse, done);
    }
    if (w != 0) {
      call.n = w;
      break;
    }
  }
  rx_latch.unlock();
  if (call.nothing && call.n > 0) {
    *done = 0;
    return IoResult::Done(ssize_t{0});
  }
  if (*done > 0) return IoResult::Done(*done);
  if (call.n >= 0) return IoResult::Done(call.n);
  errno = static_cast<int>(-call.n);
  return IoResult::Done(ssize_t{-1});
}

ssize_t Sock::Drop(std::size_t limit, bool peek) {
  char nowhere[4096];
  std::size_t done = 0;
  for (;;) {
    const std::size_t left = limit - done;
    const iovec one{nowhere, left < sizeof nowhere ? left : sizeof nowhere};
    const ssize_t n = stream_->Read(&one, 1, one.iov_len, peek);
    if (n < 0 && done > 0) stream_->KeepError(static_cast<int>(-n));
    if (n <= 0) return done > 0 ? static_cast<ssize_t>(done) : n;
    // A peek counts all that is there, which need not be looked at.
    if (peek) {
      return std::max(n, static_cast<ssize_t>(
                             std::min(limit, Looks(this).ReadableLatched())));
    }
    done += static_cast<std::size_t>(n);
    if (done == limit || anchor_.AtMark()) return static_cast<ssize_t>(done);
  }
}

}  // namespace rcsock::posix
