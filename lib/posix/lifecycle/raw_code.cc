#include "lib/posix/lifecycle/raw_code.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/backoff.h"
#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/posix/lifecycle/code_look.h"
#include "lib/posix/lifecycle/code_verdict.h"
#include "lib/posix/lifecycle/own_code.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix::raw_code {
namespace {

using rendezvous::Conductor;
using State = CodeVerdict::State;
using Socks = std::vector<std::shared_ptr<Sock>>;

// The least time between two looks at what is mapped.  Looks take at most one
// part in kShare of the time.
constexpr std::uint64_t kApartNs = 1'000'000'000;
constexpr std::uint64_t kShare = 50;
// One turn of the conductor reads so much.  That takes some 0.1 ms, in which
// nobody else is served.
constexpr std::uint64_t kTurn = 1 << 17;
constexpr std::uint64_t kAll = std::uint64_t{1} << 46;
// A turn reads files, whose server may hang.
constexpr std::uint64_t kMostTurnNs = 100'000'000;

// Guards every change of the verdict, and what a look needs.  Held while the
// conductor reads code, some 0.1 ms at a time.
constinit base::Latch latch;
// Guards the line of the streams that wait.  Taken behind `latch`, and held for
// next to no time: the program's threads take it in their calls.
constinit base::Latch line_latch;
constinit CodeVerdict verdict;
constinit std::atomic<std::uint64_t> next_ns{0};
// How many streams wait for the answer.
constinit std::atomic<int> waiting_count{0};

struct Shared {
  KnownCode known RC_GUARDED_BY(latch);
  // The conductor's look that is under way.
  std::unique_ptr<CodeLook> look RC_GUARDED_BY(latch);
  Socks waiting RC_GUARDED_BY(line_latch);
  // A look is wanted, though no stream waits for it.
  bool wanted RC_GUARDED_BY(line_latch) = false;
  // The conductor that takes a turn, or whose next turn will come.  A conductor
  // that has been stopped has dropped the turn.
  Conductor* posted RC_GUARDED_BY(line_latch) = nullptr;
};

// Never destroyed.
Shared& The() {
  static Shared* const shared = new Shared;
  return *shared;
}

bool NeverAnyMore() { return verdict.state() == State::kMayUseStreams; }

// Called behind each change of the verdict.
void Publish() RC_REQUIRES(latch) {
  SetAllCallsSeen(OwnFace() == Face::kPreload &&
                  verdict.state() == State::kNone);
}

// Condemns a program whose code cannot be examined: nothing is certain of that
// program.
void CannotTell() RC_REQUIRES(latch) {
  RCSOCK_LOG(1, "no lanes: the program's code cannot be examined");
  verdict.Condemn();
  Publish();
}
void CannotTellUnlatched() RC_EXCLUDES(latch) {
  const Critical critical;
  const base::LatchGuard lock(latch);
  CannotTell();
}

// Judges the code that a finished look has seen.
void Judge(const CodeLook& look) RC_REQUIRES(latch) {
  if (!look.culprit().empty()) {
    RCSOCK_LOG(1, "no lanes: %s", look.culprit().c_str());
    verdict.Condemn();
    Publish();
  } else if (look.missed()) {
    CannotTell();
  } else {
    look.Remember(&The().known);
  }
}

void Turn();

// Ends the line: no turn will come.
void TakeWaiting(Socks* waiting) RC_EXCLUDES(line_latch) {
  Shared& shared = The();
  const base::LatchGuard lock(line_latch);
  shared.posted = nullptr;
  shared.wanted = false;
  waiting->swap(shared.waiting);
  waiting_count.store(0, std::memory_order_relaxed);
}

// Returns false if there will be no turn.
bool NextTurn(std::uint64_t wait_ns) RC_REQUIRES(latch) {
  Conductor* const conductor = Conductor::IfRunning();
  if (conductor == nullptr) return false;
  // The line still names this turn's conductor, which is the next turn's.
  return wait_ns == 0 ? conductor->Post(&Turn)
                      : conductor->After(
                            static_cast<std::uint32_t>(wait_ns / 1'000'000) + 1,
                            &Turn) != 0;
}

// The only place that makes the verdict kNone.  Returns false if another look
// must follow.
bool Conclude(const CodeLook& look) RC_REQUIRES(latch) {
  Judge(look);
  const std::uint64_t now = base::NowNs();
  const std::uint64_t took = now - look.began_ns();
  if (!verdict.Acquit(look.ticket(), now, LoaderIsAtWork())) return false;
  Publish();
  next_ns.store(now + std::max(kApartNs, kShare * took),
                std::memory_order_relaxed);
  return true;
}

enum class Turned : std::uint8_t {
  kLater,     // another turn will come
  kAnswered,  // the verdict stands
  kGaveUp,    // no memory for another turn
};

// Makes one turn.  If no other turn will come, moves the streams that wait for
// the verdict into *waiting.
Turned TurnLatched(Socks* waiting) RC_REQUIRES(latch) {
  Shared& shared = The();
  Turned turned = Turned::kAnswered;
  // A program that is linked with the library has chosen to be.
  while (OwnFace() == Face::kPreload && !NeverAnyMore()) {
    // No file can be opened any more.  No stream searches.
    if (ProcessPinned() == base::Reason::kSandboxed) {
      turned = Turned::kGaveUp;
      break;
    }
    std::unique_ptr<CodeLook>& look = shared.look;
    if (look != nullptr && verdict.IsStale(look->ticket())) {
      look->Remember(&shared.known);
      look.reset();
    }
    const std::uint64_t wait = verdict.WaitNs(base::NowNs(), LoaderIsAtWork());
    if (wait != 0) {
      turned = NextTurn(wait) ? Turned::kLater : Turned::kGaveUp;
      break;
    }
    if (look == nullptr) {
      look =
          std::make_unique<CodeLook>(verdict.BeginLook(), CodeLook::At::kAll);
      if (!look->Begin(shared.known)) {
        CannotTell();
        break;
      }
    }
    if (look->Step(kTurn)) {
      const bool over = Conclude(*look);
      look.reset();
      if (over) break;
    }
    if (NextTurn(0)) {
      turned = Turned::kLater;
      break;
    }
    // There is no memory for another turn, so this turn goes on.
  }
  if (turned == Turned::kLater) return turned;
  shared.look.reset();
  TakeWaiting(waiting);
  return turned;
}

// Runs on the conductor's thread.
void Turn() {
  Socks waiting;
  Turned turned = Turned::kAnswered;
  try {
    const base::LatchGuard lock(latch);
    turned = TurnLatched(&waiting);
  } catch (...) {
    CannotTellUnlatched();  // no memory
    TakeWaiting(&waiting);
  }
  if (turned == Turned::kLater) return;
  Conductor* const conductor = Conductor::IfRunning();
  if (NeverAnyMore()) PinProcessFromConductor(base::Reason::kRawCalls);
  for (const std::shared_ptr<Sock>& sock : waiting) {
    rendezvous::Seeker& seeker = *sock;
    if (NeverAnyMore()) {
      seeker.SeekFailed(base::Reason::kRawCalls, true);
    } else if (!Route(sock.get()).Engaged()) {
      continue;  // the stream has given up
    } else if (turned == Turned::kGaveUp) {
      seeker.SeekFailed(base::Reason::kNoMemory, false);
    } else if (conductor == nullptr) {
      seeker.SeekFailed(base::Reason::kNoThread, false);
    } else {
      conductor->Seek(sock);
    }
  }
}

// Reads what a library has brought, in the thread that has opened it.
void LookAtFiles() RC_REQUIRES(latch) {
  CodeLook look(verdict.BeginLook(), CodeLook::At::kFiles);
  if (!look.Begin(The().known)) return CannotTell();
  look.Step(kAll);
  Judge(look);
}

// Returns whether no decision is due: there is nothing to decide any more, or
// not yet.
bool IsIdle() {
  return OwnPid() == 0 || NeverAnyMore() ||
         ProcessPinned() != base::Reason::kNone;
}

// Has the conductor take a turn, if none of its turns will come anyway. Returns
// false if it cannot.
bool PostTurn(Shared* shared, Conductor* conductor) RC_REQUIRES(line_latch) {
  if (shared->posted == conductor) return true;
  if (!conductor->Post(&Turn)) return false;
  shared->posted = conductor;
  return true;
}

}  // namespace

bool MayAdopt() {
  return OwnFace() != Face::kPreload || verdict.state() == State::kNone;
}

void LookAtCalls(Conductor* conductor) {
  const State state = verdict.state();
  if (OwnFace() != Face::kPreload || state == State::kMayUseStreams ||
      (state == State::kNone &&
       base::NowNs() < next_ns.load(std::memory_order_relaxed))) {
    return;
  }
  Shared& shared = The();
  const base::LatchGuard lock(line_latch);
  shared.wanted = true;
  if (conductor != nullptr) PostTurn(&shared, conductor);
}

Answer MaySeek(const std::shared_ptr<Sock>& sock, Conductor* conductor) {
  const State state =
      OwnFace() == Face::kPreload ? verdict.state() : State::kNone;
  if (state == State::kMayUseStreams) return Answer::kNever;
  if (conductor != nullptr && state == State::kNone &&
      (OwnFace() != Face::kPreload ||
       base::NowNs() < next_ns.load(std::memory_order_relaxed))) {
    return Answer::kMay;
  }
  try {
    Shared& shared = The();
    const base::LatchGuard lock(line_latch);
    shared.waiting.push_back(sock);
    if (conductor != nullptr && !PostTurn(&shared, conductor)) {
      shared.waiting.pop_back();
      return Answer::kNotNow;
    }
    waiting_count.fetch_add(1, std::memory_order_relaxed);
    return Answer::kLater;
  } catch (...) {
    return Answer::kNotNow;  // no memory
  }
}

void Started(Conductor* conductor, base::Reason why) {
  if (conductor != nullptr) {
    Shared& shared = The();
    const base::LatchGuard lock(line_latch);
    if (shared.waiting.empty() && !shared.wanted) return;
    if (PostTurn(&shared, conductor)) return;
    why = base::Reason::kNoThread;
  }
  Socks failed;
  TakeWaiting(&failed);
  for (const std::shared_ptr<Sock>& sock : failed) {
    if (!Route(sock.get()).Engaged()) continue;  // the stream has given up
    rendezvous::Seeker& seeker = *sock;
    seeker.SeekFailed(why, false);
  }
}

void Forget(const Sock* sock) {
  if (waiting_count.load(std::memory_order_relaxed) == 0) return;
  std::shared_ptr<Sock> gone;  // given back after the latch is released
  const base::LatchGuard lock(line_latch);
  Socks& all = The().waiting;
  const auto one = std::find_if(all.begin(), all.end(), [&](const auto& other) {
    return other.get() == sock;
  });
  if (one == all.end()) return;
  gone = std::move(*one);
  all.erase(one);
  waiting_count.fetch_sub(1, std::memory_order_relaxed);
}

void AwaitTurn() {
  const Critical critical;
  const std::uint64_t end = base::NowNs() + kMostTurnNs;
  for (base::Backoff backoff; !latch.try_lock(); backoff.Wait()) {
    if (base::NowNs() > end) return;
  }
  latch.unlock();
}

void AfterOpen() {
  if (IsIdle()) return;
  const int saved = errno;
  try {
    const Critical critical;
    const base::InternalScope internal;
    const base::LatchGuard lock(latch);
    verdict.Opened();
    // If the verdict is not kNone, the look that makes it kNone lists this
    // library.
    if (verdict.state() == State::kNone) LookAtFiles();
  } catch (...) {
    CannotTellUnlatched();  // no memory
  }
  if (NeverAnyMore()) PinProcess(base::Reason::kRawCalls);
  errno = saved;
}

void BeforeUnseenOpen() {
  if (IsIdle()) return;
  const int saved = errno;
  {
    const Critical critical;
    const base::LatchGuard lock(latch);
    verdict.UnseenOpen(base::NowNs());
    Publish();
  }
  // A stream begins its search or sets its mode, and then asks for the verdict.
  // Here the verdict changes before the streams are asked.  So one of the two
  // sees the other.
  base::FullFence();
  RevealAll();
  const std::uint64_t deadline = LeaveDeadline();
  ForEachSock([&](Sock* sock) {
    if (Route(sock).Engaged())
      sock->way_back().ToPlain(base::Reason::kRawCalls, deadline);
  });
  errno = saved;
}

void ForkLock() {
  latch.LockForFork();
  line_latch.LockForFork();
}

void ForkUnlock(bool child) {
  latch.AssertHeld();
  line_latch.AssertHeld();
  if (child) {
    Shared& shared = The();
    // The child has no conductor: its streams look anew.  The child counts
    // references anew, so it does not give back the references of these
    // pointers.
    new (&shared.waiting) Socks;
    shared.wanted = false;
    waiting_count.store(0, std::memory_order_relaxed);
    shared.posted = nullptr;
    shared.look.reset();
  }
  line_latch.UnlockAfterFork(child);
  latch.UnlockAfterFork(child);
}

}  // namespace rcsock::posix::raw_code
