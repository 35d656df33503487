// A send that waits a little for the lane that is about to come.
//
// The lane is there a fifth of a millisecond after connect().  A program that
// sends as fast as it can has by then given megabytes to TCP's buffers, and a
// short connection is over.  TCP may let a blocking send wait at any time,
// because its buffers are full, and so may rcsock.  A program could notice only
// the time, so the hold is short and bounded.  Where holds were in vain,
// further ones are given up (Prospect::Held).

#include "lib/posix/socket/sock_hold.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/poll_now.h"
#include "lib/base/real.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {
namespace {

// So many bytes go without a wait: requests and most answers.
constexpr std::uint64_t kFreeBytes = 16 << 10;
// The peer's thread may have gone into the kernel's recv before it was told of
// the lane, and has to come out.  So the sender sends it a little now and then.
constexpr std::uint64_t kNudgeNs = 50'000;
constexpr std::size_t kNudgeBytes = 2048;
// How often a send that waits for a gap looks for room.  TCP's buffers last
// longer.
constexpr std::uint64_t kAsideNs = 200'000;
// A small message goes as one piece, as it would on TCP.
constexpr std::size_t kWhole = 8192;
// If nothing is known of the service, more bytes than these are worth a wait.
constexpr std::uint64_t kBulk = 128 << 10;
// A lane that comes so soon after its search began was worth a wait.
constexpr std::uint64_t kLateNs = 20'000'000;

}  // namespace

bool SendGate::MayHold(int flags) const {
  return (flags & (MSG_DONTWAIT | MSG_OOB)) == 0 &&
         !sock_->nonblock.load(std::memory_order_relaxed) &&
         end_ns_.load(std::memory_order_relaxed) != kNone && AwaitsLane();
}

bool SendGate::AwaitsLane() const {
  return sock_->lane_state().AwaitsLane() && !sock_->peer().SeeksRemote() &&
         !sock_->ending().closed();
}

// Asks Prospect about the stream's service, and about all services of the
// address, which new ports (FTP's, MPI's) share.  So a peer that never brings a
// lane is not waited for each time.
void SendGate::Bulky() {
  if (sock_->calls().tx() < kBulk ||
      end_ns_.load(std::memory_order_relaxed) != 0 ||
      sock_->peer().SeeksRemote() ||
      // Another thread is about to start the conductor for this search.
      rendezvous::Conductor::IfRunning() == nullptr) {
    return;
  }
  const int saved = errno;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  const bool named = (sock_->peer().accepted()
                          ? ::getsockname(sock_->fd(), at, &length)
                          : real::getpeername(sock_->fd(), at, &length)) == 0;
  errno = saved;
  if (!named) return;
  // The port is at one place in both families.
  reinterpret_cast<sockaddr_in*>(at)->sin_port = 0;
  const std::uint16_t place =
      Prospect::ServiceAt(at, length, sock_->peer().role());
  if (place == 0) return;
  std::uint64_t limit = Prospect::HoldNs(sock_->peer().service());
  if (limit != 0) limit = std::min(limit, Prospect::HoldNs(place));
  Latched latched(sock_);
  if (end_ns_.load(std::memory_order_relaxed) != 0 ||
      sock_->lane_state().state() != LaneState::State::kSeeking ||
      sock_->mode() != Mode::kPlain || sock_->lane_state().Pinned() ||
      sock_->ending().closed()) {
    return;
  }
  if (limit == 0) {
    end_ns_.store(kNone, std::memory_order_relaxed);
    return;
  }
  place_.store(place, std::memory_order_relaxed);
  end_ns_.store(base::NowNs() + limit, std::memory_order_relaxed);
  sock_->lane_state().SetHopeful(true);
  sock_->lane_state().Step(LaneState::Event::kHope);
}

std::uint64_t SendGate::Begin(std::uint64_t now) {
  std::uint64_t end = end_ns_.load(std::memory_order_relaxed);
  if (end != 0) return end;
  const std::uint64_t limit = Prospect::HoldNs(sock_->peer().service());
  end = limit == 0 ? kNone : now + limit;
  end_ns_.store(end, std::memory_order_relaxed);
  return end;
}

bool SendGate::Take() {
  // Of threads that wait at once, one reports how the hold ended.
  if (end_ns_.exchange(kNone, std::memory_order_relaxed) <= kNone) {
    return false;
  }
  const std::uint64_t ns = held_ns_.load(std::memory_order_relaxed);
  if (ns == 0) return true;  // no call has waited
  const bool vain = sock_->lane_state().state() != LaneState::State::kOnLane;
  RCSOCK_LOG(2, "fd %d: held back for %llu us%s", sock_->fd(),
             static_cast<unsigned long long>(ns / 1000),
             vain ? ", in vain" : "");
  Prospect::Held(sock_->peer().service(), ns, vain);
  if (const std::uint16_t place = place_.load(std::memory_order_relaxed)) {
    Prospect::Held(place, ns, vain);
  }
  return true;
}

void SendGate::End() {
  if (!Take() || place_.load(std::memory_order_relaxed) == 0) return;
  // The search goes on, a second at most.  But this connection no longer
  // promises anything that its calls should take care for.
  Latched latched(sock_);
  sock_->lane_state().SetHopeful(false);
  sock_->lane_state().Step(LaneState::Event::kLoseHope);
}

void SendGate::EndIfOver() {
  const std::uint64_t end = end_ns_.load(std::memory_order_relaxed);
  if (end > kNone && place_.load(std::memory_order_relaxed) != 0 &&
      base::NowNs() >= end) {
    End();
  }
}

// The lane may have come between two polls for room.  A send that is held
// reports that itself.
void SendGate::LaneCame(std::uint64_t sought_ns) {
  if (held_ns_.load(std::memory_order_relaxed) == 0 || Take() ||
      base::NowNs() - sought_ns >= kLateNs) {
    return;
  }
  Prospect::CameLate(sock_->peer().service());
  Prospect::CameLate(place_.load(std::memory_order_relaxed));
}

void SendGate::CountHeld(std::uint64_t since_ns) {
  held_ns_.fetch_add(static_cast<std::uint32_t>(base::NowNs() - since_ns),
                     std::memory_order_relaxed);
}

// The program keeps its bytes here.  What brings the peer's thread out of the
// kernel (kNudgeNs) is what the program sends next.
bool SendGate::WaitInPoll(std::int64_t timeout_ns) {
  if (end_ns_.load(std::memory_order_relaxed) == kNone || !AwaitsLane() ||
      GivenToTcp() < kFreeBytes) {
    return true;
  }
  const std::uint64_t most = timeout_ns < 0
                                 ? ~std::uint64_t{0} >> 1
                                 : static_cast<std::uint64_t>(timeout_ns) / 2;
  const std::uint64_t start = base::NowNs();
  const std::uint64_t end = Begin(start);
  if (end == kNone) return true;
  std::uint64_t now = start;
  bool interrupted = false;
  if (now < end) {
    Critical critical;
    CallWait wait;
    wait.timed = wait.poll = true;
    wait.signals = tls_signals.any;
    AwaitLane(wait, std::min({start + kNudgeNs, start + most, end}));
    interrupted = wait.signals != tls_signals.any;
    now = base::NowNs();
  }
  held_ns_.fetch_add(static_cast<std::uint32_t>(now - start),
                     std::memory_order_relaxed);
  if (now >= end || !AwaitsLane()) End();
  return !interrupted;
}

bool SendGate::SendsParts() {
  if (!sock_->nonblock.load(std::memory_order_relaxed) ||
      end_ns_.load(std::memory_order_relaxed) == kNone ||
      sock_->interests.load(std::memory_order_relaxed) != nullptr ||
      !AwaitsLane()) {
    return false;
  }
  const std::uint64_t now = base::NowNs();
  const std::uint64_t end = Begin(now);
  if (end == kNone) return false;
  if (now < end) return true;
  End();
  return false;
}

bool SendGate::AwaitsGap(int flags) const {
  return sock_->lane_state().Agreed() &&
         (flags & (MSG_DONTWAIT | MSG_OOB)) == 0 &&
         !sock_->nonblock.load(std::memory_order_relaxed) &&
         sock_->mode() == Mode::kPlain && AwaitsLane();
}

// A send that sleeps in the kernel until there is room leaves no gap beside a
// thread that receives.  A connection that both ends fill would then have no
// lane.  So the send sleeps here, where the stream may be adopted, for as long
// as the search goes on (2 s at most).  It looks for room now and then.
IoResult SendGate::SendAside(int number, const iovec* iov, int count,
                             std::size_t total, int flags, std::size_t* done) {
  Critical critical;
  CallWait wait;
  wait.timed = true;
  wait.signals = tls_signals.interrupts;
  const bool later = (flags & Sock::kLater) != 0;
  wait.any = later ? tls_signals.begun : tls_signals.any;
  const std::uint64_t most =
      sock_->snd_timeout_ns.load(std::memory_order_relaxed);
  const std::uint64_t end =
      most == 0 ? ~std::uint64_t{0} : base::NowNs() + most;
  while (AwaitsGap(flags)) {
    // A send that has sent something leaves an error to the next call.
    if (*done > 0 && sock_->anchor().Broken()) return IoResult::Done(*done);
    const IoResult sent = SendNow(number, iov, count, *done, total);
    if (sent.retry()) break;
    const ssize_t n = sent.bytes;
    if (n > 0) *done += static_cast<std::size_t>(n);
    if (*done == total) return IoResult::Done(total);
    const std::uint64_t now = base::NowNs();
    wait.part = later || *done > 0;
    const bool interrupted = wait.part ? wait.any != tls_signals.any
                                       : wait.signals != tls_signals.interrupts;
    const int error = n < 0 && n != -EAGAIN ? static_cast<int>(-n)
                      : interrupted         ? EINTR
                      : now >= end          ? EAGAIN
                                            : 0;
    if (error != 0) {
      if (*done > 0) {
        sock_->KeepError(number, error);
        return IoResult::Done(*done);
      }
      if (error == EPIPE && (flags & MSG_NOSIGNAL) == 0) RaiseSigpipe();
      errno = error;
      return IoResult::Done(ssize_t{-1});
    }
    AwaitLane(wait, std::min(now + kAsideNs, end));
  }
  // Another thread has closed the stream: see Send.
  if (*done > 0 && sock_->ending().closed()) {
    return IoResult::Done(*done);
  }
  return IoResult::Retry();
}

// One held send.
struct SendGate::Call {
  const int number;
  const iovec* const iov;
  const int count;
  const std::size_t total;
  const int flags;
  std::size_t* const done;
  bool interrupted = false;
  // The result, once there is one.
  IoResult result = IoResult::Retry();
};

// Sends what TCP has room for.  Returns whether the hold goes on; if not, and
// call.result is no retry, that is the call's result.
bool SendGate::Nudge(Call& call) {
  const int flags = call.flags;
  std::size_t* const done = call.done;
  if (*done > 0) {
    // A send that has sent something leaves an error to the next call.
    pollfd one{sock_->fd(), 0, 0};
    // Below 0: a signal, which says nothing of the connection.
    if (base::PollNow(&one) > 0) {
      call.result = IoResult::Done(*done);
      return false;
    }
  }
  // What the kernel takes without a sleep, it takes whether or not there was a
  // signal.
  const bool whole = call.interrupted || call.total <= kWhole;
  const IoResult sent = SendNow(call.number, call.iov, call.count, *done,
                                whole ? call.total : kNudgeBytes);
  if (sent.retry()) {
    return call.interrupted && !sock_->ending().closed();
  }
  const ssize_t n = sent.bytes;
  if (n > 0) *done += static_cast<std::size_t>(n);
  if (n < 0 && *done > 0) sock_->KeepError(call.number, static_cast<int>(-n));
  if (n < 0 && n != -EAGAIN && *done == 0) {
    if (n == -EPIPE && (flags & MSG_NOSIGNAL) == 0) RaiseSigpipe();
    errno = static_cast<int>(-n);
    call.result = IoResult::Done(ssize_t{-1});
    return false;
  }
  if (*done == call.total) {
    call.result = IoResult::Done(call.total);
    return false;
  }
  if (!call.interrupted) return n >= 0;  // below 0: TCP has no room
  if (n > 0) return true;                // until there is no room
  if (*done == 0) errno = EINTR;
  call.result = *done > 0 ? IoResult::Done(*done) : IoResult::Done(ssize_t{-1});
  return false;
}

// Waits for the lane until `end`, and nudges the peer meanwhile.
void SendGate::HoldUntil(Call& call, std::uint64_t start, std::uint64_t end) {
  Critical critical;
  CallWait wait;
  wait.timed = true;
  wait.signals = tls_signals.interrupts;
  const bool later = (call.flags & Sock::kLater) != 0;
  wait.part = later;
  wait.any = tls_signals.begun;
  std::uint64_t nudge = start + kNudgeNs;
  for (;;) {
    const int r = AwaitLane(wait, std::min(nudge, end));
    call.interrupted = later ? wait.any != tls_signals.any
                             : wait.signals != tls_signals.interrupts;
    const std::uint64_t now = base::NowNs();
    if (!call.interrupted && (now >= end || !AwaitsLane())) return;
    if (!call.interrupted && r == 0 && now < nudge) continue;
    nudge = now + kNudgeNs;
    if (!Nudge(call)) return;
  }
}

IoResult SendGate::Send(int number, const iovec* iov, int count,
                        std::size_t total, int flags, std::size_t* done) {
  const bool may = MayHold(flags);
  if ((!may && !AwaitsGap(flags)) || total == 0 || Null(iov, count) ||
      GivenToTcp() < kFreeBytes) {
    return IoResult::Retry();
  }
  if (!may) return SendAside(number, iov, count, total, flags, done);
  const std::uint64_t start = base::NowNs();
  std::uint64_t end = Begin(start);
  if (end == kNone) return IoResult::Retry();
  if (start >= end) {
    End();
    return IoResult::Retry();
  }
  if (const std::uint64_t most =
          sock_->snd_timeout_ns.load(std::memory_order_relaxed)) {
    end = std::min(end, start + most / 2);
  }
  // A handler that comes late in the hold is to end SendAside, too.
  Critical critical;
  Call call{number, iov, count, total, flags, done};
  HoldUntil(call, start, end);
  if (!call.result.retry()) return call.result;
  CountHeld(start);
  End();
  // Another thread has closed the stream.  The number may be another
  // connection's by now, which the caller's next try finds out.
  if (*done > 0 && sock_->ending().closed()) {
    return IoResult::Done(*done);
  }
  return AwaitsGap(flags) ? SendAside(number, iov, count, total, flags, done)
                          : IoResult::Retry();
}

// A wake-up cannot be lost.  The waiting thread reads the word and then looks
// at what AwaitsLane() asks.  That is changed before the word is
// bumped here.  So a thread that saw the old state has the old number, and the
// kernel compares. All is seq_cst, and the time of the hold is bounded.
void SendGate::Wake() { sock_->sleepers().Wake(true); }

int SendGate::AwaitLane(CallWait& wait, std::uint64_t until_ns) {
  Spinner spin{Spinner::LongLooks()};
  do {
    sock_->search().LookForAnswer();
    if (!AwaitsLane()) return 0;
  } while (spin.Go() && base::NowNs() < until_ns);
  sock_->tx_latch.lock();
  const std::uint32_t seq = sock_->sleepers().Seq(true);
  wait.deadline_ns = until_ns;
  const int result =
      AwaitsLane() ? sock_->SleepOn(wait, true, 0, seq, nullptr) : 0;
  sock_->tx_latch.unlock();
  return result;
}

std::uint64_t SendGate::GivenToTcp() const {
  if (sock_->mode() == Mode::kPlain) return sock_->calls().tx();
  Critical critical;
  sock_->tx_latch.lock();
  const stream::Stream* const stream = sock_->engine();
  const std::uint64_t bytes =
      stream != nullptr ? stream->tx_off() : sock_->calls().tx();
  sock_->tx_latch.unlock();
  return bytes;
}

IoResult SendGate::SendNow(int number, const iovec* iov, int count,
                           std::size_t skip, std::size_t most) {
  IovRest rest(iov, count);
  rest.Limit(skip, most);
  if (sock_->mode() == Mode::kEngine) {
    std::size_t done = 0;
    sock_->tx_latch.lock();
    const IoResult result =
        sock_->SendLatched(number, rest.iov(), rest.count(), rest.total(),
                           MSG_DONTWAIT | MSG_NOSIGNAL, &done);
    if (!result.done()) return IoResult::Retry();
    return IoResult::Done(result.bytes >= 0 ? result.bytes : ssize_t{-errno});
  }
  Sock::InKernel in(sock_);
  if (!in.May(number, Mode::kPlain) && !in.May(number, Mode::kUnread)) {
    return IoResult::Retry();
  }
  return IoResult::Done(
      in.Sent(sock_->anchor().Send(rest.iov(), rest.count())));
}

}  // namespace rcsock::posix
