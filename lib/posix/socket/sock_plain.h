#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_PLAIN_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_PLAIN_H_

// The path of a stream that is on TCP, compiled into the hooks.  The call is
// the kernel's.  It is marked while it is in the kernel, and counted when it is
// done.

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/call_marks.h"

namespace rcsock::posix {

// Marks a call of the constructing thread, and owns the mark.
class Sock::InKernel {
 public:
  [[gnu::always_inline]] explicit InKernel(Sock* sock)
      : sock_(sock), mark_(MarkCall(sock)) {
    if (mark_ == nullptr) [[unlikely]]
      entered_ = sock->calls().Enter();
  }
  [[gnu::always_inline]] ~InKernel() {
    if (mark_ == nullptr) [[unlikely]] {
      sock_->LeaveCall(entered_);
      return;
    }
    UnmarkCall(mark_);
    // A call that TryAdopt has found inside sees here that the stream is
    // wanted, and finishes the adoption.
    if (sock_->lane_state().Wanted()) [[unlikely]]
      sock_->LastOut();
  }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
  // Returns whether the call may be made.  It asks for the number again.  Since
  // the caller found the stream there, the number may have been closed, and be
  // another's.
  bool May(int fd, Mode mode) const {
    return sock_->mode(std::memory_order_seq_cst) == mode && sock_->IsAt(fd);
  }
  // Sent and Received count what the call has moved.  Both return `n`.
  // Inlined, so that the mark stays in registers.
  [[gnu::always_inline]] ssize_t Sent(ssize_t n) {
    return Moved(PlainCalls::kTx, n);
  }
  [[gnu::always_inline]] ssize_t Received(ssize_t n) {
    return Moved(PlainCalls::kRx, n);
  }

 private:
  [[gnu::always_inline]] ssize_t Moved(PlainCalls::Way way, ssize_t n) {
    if (n > 0) sock_->Count(way, n, mark_ == nullptr ? &entered_ : nullptr);
    return n;
  }
  Sock* const sock_;
  CallMark* const mark_;
  std::uint32_t entered_ = 0;
};

// The stream of a number, or none, for calls that do not move bytes.  The
// object stays this connection for as long as a SockAt lives, even if the
// number is closed meanwhile.  It belongs to one thread.
class SockAt {
 public:
  [[gnu::hot]] explicit SockAt(int fd) {
    while ((sock_ = LookupSock(fd)) != nullptr) {
      in_.emplace(sock_);
      // Before all threads saw the mark, the object may have become another
      // connection (SockPool).
      if (sock_->IsAt(fd)) return;
      in_.reset();
    }
  }
  SockAt(const SockAt&) = delete;
  SockAt& operator=(const SockAt&) = delete;
  explicit operator bool() const { return sock_ != nullptr; }
  Sock* get() const { return sock_; }
  Sock* operator->() const { return sock_; }
  Sock& operator*() const { return *sock_; }

 private:
  Sock* sock_;
  std::optional<Sock::InKernel> in_;
};

// Returns whether no call is in the kernel with the stream, marked or counted.
inline bool NobodyInside(Sock* sock) {
  return FenceCalls() && !sock->calls().Inside() && !CallIn(sock);
}

inline void Sock::LeaveCall(std::uint32_t entered) {
  if (calls_.Leave(entered) && lane_state_.Wanted()) [[unlikely]]
    LastOut();
}

// Counts before the call ends.  So a thread that finds the call ended sees the
// counts, and they are this connection's.  A mark keeps the object from its
// next connection (SockPool).  A call without a mark is late by the time that a
// closed object lies in the pool, and finds another life.
[[gnu::always_inline]] inline void Sock::Count(PlainCalls::Way way, ssize_t n,
                                               const std::uint32_t* entered) {
  if (entered != nullptr && !calls_.OfThisLife(*entered)) [[unlikely]]
    return;
  calls_.Add(way, static_cast<std::uint64_t>(n));
  const std::uint32_t calls = calls_.AddCall();
  if (!lane_state_.Idle(LaneState::kWeak)) {
    if (n >= SendGate::kBulkCall && lane_state_.Seeking(LaneState::kWeak) &&
        !lane_state_.Wanted(LaneState::kWeak)) [[unlikely]] {
      send_gate_.Bulky();
    }
    return;
  }
  // The bytes are on another line, and small calls make few bytes.
  if (calls >= next_ops_.load(std::memory_order_relaxed) ||
      ((n >= 1024 || calls % 16 == 0) && search_.DueAfter(calls_.bytes())))
      [[unlikely]] {
    search_.BeginAfterCall();
  }
}

template <class Raw>
inline ssize_t Sock::Send(int fd, const iovec* iov, int count,
                          std::size_t total, int flags, Raw&& raw) {
  if (lane_state_.Never(LaneState::kWeak)) {
    return Route(this).Sent(raw());
  }
  std::size_t done = 0;
  for (;;) {
    if (lane_state_.Wanted(LaneState::kWeak)) [[unlikely]] {
      const IoResult held =
          send_gate_.Send(fd, iov, count, total, flags, &done);
      if (!held.retry()) return held.bytes;
    }
    if (mode() == Mode::kEngine) {
      IoResult result = Null(iov, count)
                            ? SendNull(fd, flags, &done)
                            : EngineSend(fd, iov, count, total, flags, &done);
      if (result.done()) [[likely]]
        return result.bytes;
      if (result.closed_in_use())
        result = SendLeft(iov, count, total, flags, &done);
      if (result.gone()) {
        Sock* const other = LookupHere(fd);
        if (other == this) continue;
        if (done > 0) return static_cast<ssize_t>(done);
        return other != nullptr ? other->Send(fd, iov, count, total, flags, raw)
                                : raw();
      }
      if (!result.retry()) return result.bytes;
      if (done == 0) continue;
    }
    ssize_t n;
    {
      InKernel in(this);
      if (in.May(fd, Mode::kPlain)) [[likely]] {
      } else if (in.May(fd, Mode::kUnread)) {
        const int kept = done == 0 ? read_ahead_.TakeError() : 0;
        if (kept != 0) {
          errno = kept;
          return -1;
        }
      } else {
        if (mode() == Mode::kEngine) continue;
        Sock* const other = LookupHere(fd);
        if (other == this) continue;
        if (done > 0) return static_cast<ssize_t>(done);
        return other != nullptr ? other->Send(fd, iov, count, total, flags, raw)
                                : raw();
      }
      n = in.Sent(__builtin_expect(done == 0, 1)
                      ? raw()
                      : SendRest(fd, iov, count, done, flags));
    }
    if (done == 0) return n;
    return n >= 0 ? static_cast<ssize_t>(done) + n : static_cast<ssize_t>(done);
  }
}

template <class Raw>
inline ssize_t Sock::Recv(int fd, const iovec* iov, int count,
                          std::size_t total, int flags, Raw&& raw) {
  if (lane_state_.Never(LaneState::kWeak) && mode() == Mode::kPlain) {
    const ssize_t n = raw();
    return (flags & MSG_PEEK) == 0 ? Route(this).Received(n) : n;
  }
  std::size_t done = 0;
  for (;;) {
    const Mode now = mode();
    // Urgent data and errors are never read ahead.
    if (now == Mode::kEngine ||
        (now == Mode::kUnread && (flags & (MSG_OOB | MSG_ERRQUEUE)) == 0)) {
      IoResult result = Null(iov, count) && (flags & MSG_TRUNC) == 0
                            ? RecvNull(fd, iov, count, flags, &done)
                        : now == Mode::kEngine
                            ? EngineRecv(fd, iov, count, total, flags, &done)
                            : UnreadRecv(fd, iov, count, total, flags, &done);
      if (result.done()) [[likely]]
        return result.bytes;
      if (result.closed_in_use())
        result = RecvLeft(iov, count, total, flags, &done);
      if (result.gone()) {
        Sock* const other = LookupHere(fd);
        if (other == this) continue;
        if (done > 0) return static_cast<ssize_t>(done);
        return other != nullptr ? other->Recv(fd, iov, count, total, flags, raw)
                                : raw();
      }
      if (!result.retry()) return result.bytes;
      continue;
    }
    ssize_t n;
    {
      InKernel in(this);
      if (!in.May(fd, now)) {
        if (mode() != now) continue;
        Sock* const other = LookupHere(fd);
        if (other == this) continue;
        if (done > 0) return static_cast<ssize_t>(done);
        return other != nullptr ? other->Recv(fd, iov, count, total, flags, raw)
                                : raw();
      }
      // Bytes have come over a lane already: a MSG_WAITALL goes on in the
      // kernel.
      n = __builtin_expect(done == 0, 1)
              ? raw()
              : RecvRest(fd, iov, count, done, flags);
      if ((flags & MSG_PEEK) == 0) in.Received(n);
    }
    if (done == 0) return n;
    return n > 0 ? static_cast<ssize_t>(done) + n : static_cast<ssize_t>(done);
  }
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_PLAIN_H_
