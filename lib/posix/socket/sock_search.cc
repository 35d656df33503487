// When a stream looks for its peer, and how that search begins and ends.  What
// follows from an answer is in sock_seek.cc.

#include "lib/posix/socket/sock_search.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "lib/base/alone.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/posix/fd/spare.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/budget.h"
#include "lib/posix/socket/seek_gate.h"
#include "lib/posix/socket/snapshot.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/address.h"
#include "lib/rendezvous/near_network.h"
#include "lib/rendezvous/start_aside.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;

namespace {

// Returns whether an end finds this reason without waiting for a peer.  The
// address is no RDMA device's (a connection over another card), or what a
// device needs is not there.  A search after each few calls would pay for that
// each time.
bool FoundAtOnce(Reason reason) {
  switch (reason) {
    case Reason::kNoRoute:
    case Reason::kNoFds:
    case Reason::kNoMemory:
    case Reason::kMemlock:
    case Reason::kDeviceFull:
    case Reason::kRdmaError:
      return true;
    default:
      return false;
  }
}

// Returns the first threshold above `now`.  Streams search at the thresholds
// first, 8 * first, 64 * first...  The two ends may have learnt different
// things, and begin at different thresholds, but the later ones are equal for
// both.
std::uint64_t NextPoint(std::uint64_t first, std::uint64_t now) {
  std::uint64_t point = first > 0 ? first : 1;
  while (point <= now) {
    if (point > ~std::uint64_t{0} / 8) return ~std::uint64_t{0};
    point *= 8;
  }
  return point;
}

// The calls of a slow stream are so far apart.  In a closed loop of a thousand
// connections, which gains much by lanes, they are half as far apart.
constexpr std::uint64_t kSlowNs = 20'000'000;
// A slow stream looks at last when it has made as many calls as this times the
// threshold.
constexpr std::uint32_t kMostSlow = 64;
// Of LaneSearch::pace_ns_, which otherwise is when the pace was last noted.
constexpr std::uint64_t kPaceAsked = 1;

// Tells a new conductor what to call for the streams of this process.
void Introduce(Conductor* conductor) {
  static std::atomic<Conductor*> known{nullptr};
  if (known.exchange(conductor) == conductor) return;
  conductor->SetInspector(&TakeSnapshot);
  conductor->SetCompletionHandler([](const lane::Completion& completion) {
    static_cast<Sock*>(completion.cookie)->OnCompletion();
  });
  SeekGate::Get().Began(conductor);
  WatchSharedRings();
  KeepSpares();
}

// Answers the streams that have waited for the conductor's start.
void AnswerWaiting(Conductor* conductor, Reason why) {
  const Critical critical;
  SeekGate::Get().Started(conductor, why);
  if (conductor != nullptr) NotedShare::LookIfAsked(conductor);
}

// A lane that is wanted for the first bytes already is looked for at once.
Conductor::When WhenToSeek(const LaneState& state) {
  return state.AtOnce() || state.Hopeful() || base::GetConfig().promote_given
             ? Conductor::When::kNow
             : Conductor::When::kSoon;
}

}  // namespace

void LookAtCalls() {
  // A program that is to have no lane gets no conductor either.
  const base::Terms& terms = base::GetConfig().terms;
  if (base::Lone() || InHandler() || !SeekGate::IsSet() ||
      ProcessPinned() != Reason::kNone || InBorrowedMemory() ||
      (!terms.shm && !terms.rdma)) {
    return;
  }
  const int saved = errno;
  const Critical critical;
  Reason why = Reason::kNone;
  Conductor* const conductor = LaneSearch::StartConductor(&why);
  if (conductor != nullptr || why == Reason::kPending) {
    if (conductor != nullptr) Introduce(conductor);
    SeekGate::Get().LookAtCalls(conductor);
    // The start may have been over before the gate knew of the wish.
    if (conductor == nullptr && !rendezvous::StartsAside() &&
        Conductor::IfRunning() != nullptr) {
      AnswerWaiting(Conductor::IfRunning(), Reason::kNone);
    }
  }
  errno = saved;
}

// --- When

[[gnu::hot]] void LaneSearch::AtFirst() {
  const base::Terms& terms = sock_->peer().terms();
  at_call_.store(terms.promote_ops, std::memory_order_relaxed);
  at_bytes_.store(terms.promote_bytes, std::memory_order_relaxed);
}

void LaneSearch::After(std::uint32_t shift) {
  const base::Terms& terms = sock_->peer().terms();
  at_call_ = sock_->calls().count() + (terms.promote_ops << shift);
  at_bytes_ = sock_->calls().bytes() + (terms.promote_bytes << shift);
}

// The next search is at most 64 Ki calls that move bytes, or 64 MiB, away.
void LaneSearch::AfterAsMuch() {
  constexpr std::uint32_t kMostOps = 1u << 16;
  constexpr std::uint64_t kMostBytes = 1u << 26;
  const base::Terms& terms = sock_->peer().terms();
  const std::uint32_t calls = sock_->calls().count();
  const std::uint64_t bytes = sock_->calls().bytes();
  at_call_ = calls + std::max(std::min(calls, kMostOps), terms.promote_ops);
  at_bytes_ =
      bytes + std::max(std::min(bytes, kMostBytes), terms.promote_bytes);
}

// Each departure makes the next promotion eight times as far away.
void LaneSearch::AfterLeaving(std::uint32_t demotions) {
  if (!sock_->peer().SeeksRdma()) {
    After(3 * std::min(demotions, 6u));
  } else {
    After(sock_->peer().accepted() ? 0 : demotions < 4 ? 2 * demotions : 8);
  }
}

[[gnu::hot]] void LaneSearch::AtNextPoint(std::uint32_t calls,
                                          std::uint64_t bytes) {
  const base::Terms& terms = sock_->peer().terms();
  at_call_.store(static_cast<std::uint32_t>(std::min<std::uint64_t>(
                     NextPoint(terms.promote_ops, calls), ~std::uint32_t{0})),
                 std::memory_order_relaxed);
  at_bytes_.store(NextPoint(terms.promote_bytes, bytes),
                  std::memory_order_relaxed);
}

// A program that asks for a lane by hand, or for one to another host, is not
// second-guessed.
[[gnu::hot]] void LaneSearch::Foresee() {
  const base::Config& config = base::GetConfig();
  const base::Terms& terms = sock_->peer().terms();
  if (sock_->control().policy() != ProgramControl::Policy::kAuto ||
      sock_->peer().SeeksRemote() || sock_->calls().count() != 0)
    return;
  const Prospect::Promise promise = Prospect::Of(sock_->peer().service());
  sock_->lane_state().SetHopeful(promise == Prospect::Promise::kMuch);
  if (config.promote_given || terms.promote_ops != config.terms.promote_ops) {
    return;
  }
  if (promise == Prospect::Promise::kLittle) {
    AtNextPoint(terms.promote_ops, terms.promote_bytes);
  } else if (promise == Prospect::Promise::kLate) {
    AtNextPoint(8 * terms.promote_ops, 8 * terms.promote_bytes);
  } else if (promise == Prospect::Promise::kMuch) {
    at_call_.store(1, std::memory_order_relaxed);
    sock_->lane_state().SetAtOnce();
  } else if (config.spin_us == 0 || config.spin_earned) {
    // The profile `latency` asks for no such care.  The threshold is 8 here.
    at_call_.store(terms.promote_ops / 2, std::memory_order_relaxed);
    pace_ns_.store(kPaceAsked, std::memory_order_relaxed);
  }
}

// A lane costs as much CPU time as six to ten requests over TCP.  A request of
// a stream that is silent for most of the time costs little less on a lane.  So
// such a stream earns its lane first: it looks after 32 requests if it has
// become quicker, or else after 256.  Both ends see the same pace.  If several
// threads come here at once, the stream may count as quick.
bool LaneSearch::WaitsForPace() {
  const base::Terms& terms = sock_->peer().terms();
  const std::uint32_t calls = sock_->calls().count();
  const std::uint64_t bytes = sock_->calls().bytes();
  const std::uint64_t from = pace_ns_.load(std::memory_order_relaxed);
  if (DueAfter(bytes) || calls >= kMostSlow * terms.promote_ops) {
    pace_ns_.store(kPaceKnown, std::memory_order_relaxed);
    return false;
  }
  const std::uint64_t now = base::NowNs();
  if (from == kPaceAsked) {
    pace_ns_.store(now, std::memory_order_relaxed);
    at_call_.store(terms.promote_ops, std::memory_order_relaxed);
    return calls < terms.promote_ops;  // Begin forgets the pace
  }
  // The time was noted at half of the first threshold, or at the last one.
  const std::uint32_t noted =
      calls < 8 * terms.promote_ops ? terms.promote_ops / 2 : terms.promote_ops;
  const bool slow = calls > noted && (now - from) / (calls - noted) >= kSlowNs;
  pace_ns_.store(slow ? now : kPaceKnown, std::memory_order_relaxed);
  if (!slow) return false;
  AtNextPoint(calls, bytes);
  reason_ = Reason::kQuiet;
  return true;
}

// --- Whether

void LaneSearch::NeverLeavesTcp(Reason reason) {
  RCSOCK_LOG(1, "fd %d: stays on TCP: %s", sock_->fd(),
             base::ReasonKey(reason));
  reason_ = reason;
  sock_->lane_state().Step(LaneState::Event::kForbid);
}

[[gnu::hot]] void LaneSearch::Allow() {
  PeerFacts& peer = sock_->peer();
  peer.SetConnected();
  if (sock_->lane_state().Never()) return;
  if (ProcessPinned() != Reason::kNone) {
    NeverLeavesTcp(ProcessPinned());
    return;
  }
  if (!peer.terms().shm && !peer.terms().rdma) {
    NeverLeavesTcp(Reason::kPolicy);
    return;
  }
  if (peer.SeeksRemote()) {
    // The rules forbid shm to this local peer: the user asked for rdma.
    if (!peer.terms().rdma && !peer.MayMeetFar()) {
      reason_ = Reason::kPolicy;
      return;
    }
    if (!peer.MayMeetFar() && !rendezvous::RdmaPossible()) {
      sockaddr_storage own{};
      sockaddr_storage its{};
      rendezvous::Seeker& seeker = *sock_;
      const bool beside =
          peer.terms().shm && seeker.Names(&own, &its) &&
          rendezvous::PlaceOf(its) != rendezvous::Place::kUnknown;
      reason_ = beside ? Reason::kOtherNamespace : Reason::kNoDevice;
      return;
    }
  }
  if (sock_->lane_state().Pinned()) return;
  Foresee();
  sock_->lane_state()
      .StepFrom<LaneState::Event::kConnect, LaneState::State::kOff>();
}

bool LaneSearch::AloneToSeek() {
  if (sock_->holders().Sole()) return true;
  // Another process may still use the connection, so a later call searches.
  NotedShare& noted = sock_->noted();
  const Reason why = noted.Travels() ? noted.reason() : Reason::kPinnedFork;
  if (reason_ != why) {
    RCSOCK_LOG(1, "fd %d: no lane: %s", sock_->fd(), base::ReasonKey(why));
  }
  reason_ = why;
  Later();
  noted.AskForHolders();
  return false;
}

bool LaneSearch::MayAsk() {
  LaneState& state = sock_->lane_state();
  if (attempts_ == 0 && !IsTcp(sock_->fd())) {
    // Another interposer behind this one has made another socket.
    reason_ = Reason::kPinnedSyscall;
    state.Step(sock_->mode() == Mode::kPlain ? LaneState::Event::kForbid
                                             : LaneState::Event::kStop);
    return false;
  }
  PeerFacts& peer = sock_->peer();
  if (peer.SeeksRdma() && !peer.MayMeetFar() && !sock_->remote().HasRoom()) {
    // An accepting end only waits, and is asked again when it has been found.
    reason_ = Reason::kBudget;
    Later();
    state.Step(LaneState::Event::kGiveUp);
    return false;
  }
  return true;
}

// --- A search

void LaneSearch::BeginAfterCall() {
  if (pace_ns_.load(std::memory_order_relaxed) != kPaceKnown &&
      WaitsForPace()) {
    return;
  }
  const int saved = errno;
  Begin();
  errno = saved;
}

[[gnu::hot]] void LaneSearch::BeginIfWorth() {
  if (sock_->lane_state().AtOnce()) [[unlikely]]
    BeginAfterCall();
}

void LaneSearch::Begin() {
  pace_ns_.store(kPaceKnown, std::memory_order_relaxed);
  // A search takes memory, which a handler must not.  Without a gate the
  // process is not ready for a search.  The next call asks again.
  if (!AloneToSeek() || InHandler() || !SeekGate::IsSet()) return;
  // Of several threads one begins.  Another thread wrote attempts_, at the end
  // of the previous search, before it let this thread begin.
  LaneState& state = sock_->lane_state();
  if (!state.Step(LaneState::Event::kSeek) || !MayAsk()) return;
  Critical critical;
  Reason why = Reason::kNone;
  Conductor* conductor = StartConductor(&why);
  if (conductor == nullptr && why != Reason::kPending) {
    RCSOCK_LOG(1, "fd %d: no lane: %s", sock_->fd(), base::ReasonKey(why));
    reason_ = why;
    state.Step(LaneState::Event::kStop);
    return;
  }
  if (conductor != nullptr) Introduce(conductor);
  // While the stream searches again, the reason of its last search stands.
  if (attempts_ == 0) reason_ = Reason::kPending;
  RCSOCK_LOG(2, "fd %d: looking for its peer", sock_->fd());
  {
    // If a fork has given the search up meanwhile, the thread that began it may
    // still be here.
    Latched latched(sock_);
    sock_->remote().Seeks();
    if (state.Hopeful()) state.Step(LaneState::Event::kHope);
  }
  rendezvous::Seeker& seeker = *sock_;
  switch (SeekGate::Get().MaySeek(Share(sock_), conductor)) {
    case SeekGate::Answer::kMay:
      conductor->Seek(Share(sock_), WhenToSeek(state));
      break;
    case SeekGate::Answer::kLater:
      // The start may have been over before the stream was in the line.
      if (conductor == nullptr && !rendezvous::StartsAside()) {
        const Reason failed = Conductor::FailedLately();
        AnswerWaiting(Conductor::IfRunning(),
                      failed != Reason::kNone ? failed : Reason::kNoThread);
      }
      break;
    case SeekGate::Answer::kNotNow:
      seeker.SeekFailed(Reason::kNoMemory, false);
      break;
    case SeekGate::Answer::kNever:
      seeker.SeekFailed(Reason::kRawCalls, true);
      break;
  }
}

Conductor* LaneSearch::StartConductor(Reason* why) {
  return rendezvous::GetAside(why, {&Introduce, &AnswerWaiting});
}

void LaneSearch::LookForAnswer() {
  const int saved = errno;
  Critical critical;
  if (Conductor* conductor = Conductor::IfRunning()) conductor->Look(sock_);
  errno = saved;
}

void LaneSearch::FailedLatched(Reason reason, bool final) {
  LaneState& state = sock_->lane_state();
  reason_ = reason;
  const bool remote = sock_->peer().SeeksRdma();
  // A search that a guess had begun does not count among the five.
  const bool guessed = state.TakeAtOnce();
  state.SetHopeful(false);
  const bool again = !final && !state.Pinned() && !sock_->ending().closed();
  if (again && remote) {
    // A peer on another host may have its own limits, and a link its own
    // troubles.  So the peer is asked again for as long as the connection
    // lives, after ever more traffic.  The end that accepted only waits to be
    // asked, if it can; that costs nothing.  A stream that lacks nothing but
    // room may have a lane as soon as it earns one.
    if (attempts_ < 4 && reason != Reason::kBudget) ++attempts_;
    const bool waits = sock_->peer().accepted() && !FoundAtOnce(reason);
    const int attempts = attempts_;
    After(waits || attempts == 0
              ? 0
              : 2 * static_cast<std::uint32_t>(attempts - 1));
    state.Step(LaneState::Event::kGiveUp);
  } else if (again && sock_->tally().promoted()) {
    // The peer has had a lane here, so it runs under rcsock.  It may share its
    // end with a child for as long as the child lives.
    AfterAsMuch();
    state.Step(LaneState::Event::kGiveUp);
  } else if (attempts_ += guessed ? 0 : 1; again && !Spent()) {
    // The peer may only have been slow, or be in no hurry: five searches in
    // all.
    AtNextPoint(sock_->calls().count(), sock_->calls().bytes());
    state.Step(LaneState::Event::kGiveUp);
  } else {
    // A pin may end.  A last search is final.
    const bool never = sock_->mode() == Mode::kPlain && (final || Spent());
    state.Step(never ? LaneState::Event::kForbid : LaneState::Event::kStop);
  }
}

void LaneSearch::Cancel() {
  if (!sock_->lane_state().Seeking()) return;
  Critical critical;  // the conductor's latch
  SeekGate::Get().Forget(sock_);
  if (Conductor* conductor = Conductor::IfRunning()) conductor->Cancel(sock_);
  Latched latched(sock_);
  // A step of the search that runs at this moment finds the search given up:
  // TryAdopt and LaneOpen look under the latches.
  EndLatched();
  if (sock_->mode() == Mode::kEngine) sock_->Wake(false);  // HoldsEnd
  sock_->send_gate().Wake();
}

// A closed stream gets no other search.
void LaneSearch::EndLatched() {
  if (sock_->ending().closed()) {
    sock_->lane_state().Step(LaneState::Event::kStop);
    return;
  }
  if (!sock_->lane_state().Seeking()) return;
  Later();
  sock_->lane_state().Step(LaneState::Event::kGiveUp);
}

[[gnu::hot]] void LaneSearch::Reset() {
  AtFirst();
  pace_ns_.store(kPaceKnown, std::memory_order_relaxed);
  attempts_.store(0, std::memory_order_relaxed);
  reason_.store(Reason::kShortLived, std::memory_order_relaxed);
}

}  // namespace rcsock::posix
