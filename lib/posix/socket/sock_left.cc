// A number that is closed while calls sleep on its stream.
//
// The kernel's call keeps the open file, whose end comes when the call returns.
// Until then the call goes on, whatever the number names meanwhile.  Here the
// number itself is the anchor.  So close() gives the stream another number, of
// rcsock's own, which the table has as it has any copy's.  All that is done to
// every stream is then done to this stream, too.  The stream ends when the last
// of the calls closes that number.
//
// A sleeping call is counted already, so a call does nothing more before it
// sleeps.  A call that wakes finds fd_ under its latch.  From then on it is
// counted in awake_ while it does not sleep.  A handler may jump out of
// a sleep, and cancellation ends a sleep, and neither tells of that here.  So
// the conductor, too, looks whether there is a call left.

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

constexpr std::uint32_t kMostLookMs = 1024;

// The innermost call of this thread that has joined (kJoinsLeft).  A handler
// may have jumped out of it; then the object may be another connection by now.
struct Left {
  const Sock* sock = nullptr;
  std::uint32_t life = 0;
  std::uint64_t deadline_ns = 0;
  bool awake = false;
};
thread_local constinit Left tls_left;
// What a call that has just joined brings along.
struct Joined {
  std::uint64_t deadline_ns = 0;
  int result = 0;
  bool handled = false;  // handlers have run
};
thread_local constinit Joined tls_joined;

void CloseLeft(int number) {
  const int saved = errno;
  base::Disown(number);
  CloseAny(number);
  errno = saved;
}

}  // namespace

// A call whose number was closed under its sleep, from kJoinsLeft on.  It owns
// a place in awake_, and is a critical section that sleeps interrupt, as every
// call's.  It belongs to its thread.
class LeftCalls::Call {
 public:
  explicit Call(Sock* sock)
      : sock_(sock),
        left_(sock->left()),
        outer_(tls_left),
        joined_(tls_joined) {
    tls_left = {sock, sock->calls().Life(), joined_.deadline_ns, true};
  }
  // The destructor also runs when cancellation ends the call.
  ~Call() {
    const int saved = errno;
    const bool awake = tls_left.awake;
    tls_left = outer_;
    int number;
    bool last;
    {
      Latched latched(sock_);
      if (awake) left_.awake_.fetch_sub(1, std::memory_order_relaxed);
      last = left_.LastLatched(&number);
    }
    if (last) CloseLeft(number);
    LeaveCritical();
    errno = saved;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Returns the call's result if there is one at once.  ClosedInUse: the call
  // goes on.
  IoResult Over(std::size_t done) const {
    if (joined_.result == -EINTR) {
      if (done > 0) return IoResult::Done(done);
      errno = EINTR;
      return IoResult::Done(ssize_t{-1});
    }
    // The kernel makes the call again: what the number names is asked anew.
    return joined_.handled ? IoResult::Gone() : IoResult::ClosedInUse();
  }
  // Makes `call()`, which may sleep in the kernel, and counts it as a sleep.
  // Returns what it returns.
  template <class Call>
  ssize_t InKernelsSleep(std::atomic<int>* count, Call&& call) {
    count->fetch_add(1, std::memory_order_seq_cst);
    left_.SleepsToo();  // holds no latch, so does not look at fd_
    CountedSleep counted(count);
    ssize_t n;
    {
      const OutsideCritical outside;
      n = call();
    }
    left_.Wakes();
    return n;
  }

 private:
  Sock* const sock_;
  LeftCalls& left_;
  const Left outer_;
  const Joined joined_;
};

// Returns how many calls sleep on the stream.  If a handler of this thread has
// interrupted such a call, that call does not count.  The close ends it as the
// kernel's would, where the interrupted call is over by then.
int LeftCalls::SleepersLatched() const {
  return sock_->sleepers().All(tls_signals.counted);
}

bool LeftCalls::LeaveTo(int number, const Successor& next, int* result) {
  if (sock_->mode() != Mode::kEngine || SleepersLatched() <= 0) return false;
  if (Conductor::IfRunning() == nullptr) return false;
  // Without another number the stream ends under the calls.
  const int hidden = base::CopyHigh(number);
  if (hidden < 0) return false;
  // From GoOnBy on the last of the calls may return, and close the stream for
  // good.
  const std::shared_ptr<Sock> keep = Share(sock_);
  bool left;
  {
    Latched latched(sock_);
    latches_.AssertHeld();
    left = sock_->mode() == Mode::kEngine && SleepersLatched() > 0;
    if (left) {
      fd_.Write(latches_.tx, latches_.rx) = hidden;
      awake_.store(0, std::memory_order_relaxed);
      GoOnBy(hidden, sock_);
    }
  }
  if (!left) {
    base::CloseRaw(hidden);
    return false;
  }
  sock_->ending().LoseNumber(number);
  *result = CloseNumber(number, next, true);
  const int saved = errno;
  EndLater(1);
  errno = saved;
  return true;
}

bool LeftCalls::LastLatched(int* number) {
  latches_.AssertHeld();
  if (fd_ < 0 || awake_.load(std::memory_order_relaxed) > 0 ||
      SleepersLatched() > 0) {
    return false;
  }
  *number = std::exchange(fd_.Write(latches_.tx, latches_.rx), -1);
  return true;
}

void LeftCalls::End() {
  int number;
  {
    Latched latched(sock_);
    if (!LastLatched(&number)) return;
  }
  CloseLeft(number);
}

void LeftCalls::EndLater(std::uint32_t ms) {
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  conductor->After(ms, [self = Share(sock_), ms] {
    LeftCalls& left = self->left();
    left.End();
    bool more;
    {
      Latched latched(self.get());
      more = left.Any();
    }
    if (more) left.EndLater(std::min(2 * ms, kMostLookMs));
  });
}

void LeftCalls::OnForkChild() {
  awake_.store(0, std::memory_order_relaxed);
  latches_.AssertUnshared();
  const int number = std::exchange(fd_.Write(latches_.tx, latches_.rx), -1);
  if (number >= 0) CloseLeft(number);
}

// A call that only waits for a lane does not join, nor does a poll: these have
// nothing more to do with the stream.
bool LeftCalls::JoinsToo(const CallWait& wait, int result) {
  const std::uint32_t life = sock_->calls().Life();
  // A call of another connection, whose object this has been, does not join
  // either.  That connection ended under the sleep, for there was no number to
  // keep it by.
  if (wait.process == 0 || wait.process != OwnPid() || wait.life != life ||
      (tls_left.sock == sock_ && tls_left.life == life)) {
    return false;
  }
  awake_.fetch_add(1, std::memory_order_relaxed);
  tls_joined = {wait.deadline_ns, result, tls_signals.any != wait.any};
  EnterCritical();  // LeftCalls::Call leaves it
  return true;
}

// The analysis cannot know a latch that `tx` chooses.
bool LeftCalls::GiveWay(const CallWait& wait, bool tx) RC_NO_LOCK_CHECK {
  base::Latch& latch = tx ? sock_->tx_latch : sock_->rx_latch;
  std::atomic<int>& count = sock_->sleepers().OnWord(tx);
  count.fetch_add(1, std::memory_order_relaxed);
  latch.Yield();
  const bool left = Joins(wait, 0);
  count.fetch_sub(1, std::memory_order_relaxed);
  return left;
}

bool LeftCalls::SleepsToo() {
  if (tls_left.sock != sock_ || tls_left.life != sock_->calls().Life() ||
      !tls_left.awake) {
    return false;
  }
  tls_left.awake = false;
  awake_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void LeftCalls::Wakes() {
  tls_left.awake = true;
  awake_.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t LeftCalls::DeadlineToo() const {
  return tls_left.sock == sock_ && tls_left.life == sock_->calls().Life()
             ? tls_left.deadline_ns
             : 0;
}

IoResult Sock::RecvLeft(const iovec* iov, int count, std::size_t total,
                        int flags, std::size_t* done) {
  LeftCalls::Call call(this);
  if (const IoResult over = call.Over(*done); !over.closed_in_use())
    return over;
  if (Null(iov, count) && (flags & MSG_TRUNC) == 0) return IoResult::Gone();
  const int number = fd();
  for (;;) {
    const Mode now = mode();
    IoResult result = IoResult::Retry();
    if (now == Mode::kEngine) {
      rx_latch.lock();
      result = RecvLatched(number, iov, count, total, flags, done);
    } else {
      if (now == Mode::kUnread) {
        result = UnreadRecv(number, iov, count, total, flags, done);
      }
      if (result.retry() && mode() != Mode::kEngine) {
        InKernel in(this);
        if (!in.May(number, now)) continue;
        IovRest rest(iov, count);
        rest.Skip(*done);
        msghdr message{};
        message.msg_iov = const_cast<iovec*>(rest.iov());
        message.msg_iovlen = static_cast<std::size_t>(rest.count());
        const ssize_t n = call.InKernelsSleep(&sleepers_.OnWord(false), [&] {
          return real::recvmsg(number, &message, flags);
        });
        if ((flags & MSG_PEEK) == 0) in.Received(n);
        if (*done == 0) return IoResult::Done(n);
        return IoResult::Done(static_cast<ssize_t>(*done) + (n > 0 ? n : 0));
      }
    }
    if (!result.retry()) return result;
  }
}

IoResult Sock::SendLeft(const iovec* iov, int count, std::size_t total,
                        int flags, std::size_t* done) {
  LeftCalls::Call call(this);
  if (const IoResult over = call.Over(*done); !over.closed_in_use())
    return over;
  const int number = fd();
  for (;;) {
    const Mode now = mode();
    if (now == Mode::kEngine) {
      tx_latch.lock();
      const IoResult result =
          SendLatched(number, iov, count, total, flags, done);
      if (!result.retry()) return result;
      continue;
    }
    InKernel in(this);
    if (!in.May(number, now)) continue;
    const ssize_t n = call.InKernelsSleep(&sleepers_.OnWord(true), [&] {
      if (*done > 0) return SendRest(number, iov, count, *done, flags);
      IovRest rest(iov, count);
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(rest.iov());
      message.msg_iovlen = static_cast<std::size_t>(rest.count());
      return real::sendmsg(number, &message, flags & ~kLater);
    });
    in.Sent(n);
    if (*done == 0) return IoResult::Done(n);
    return IoResult::Done(static_cast<ssize_t>(*done) + (n > 0 ? n : 0));
  }
}

}  // namespace rcsock::posix
