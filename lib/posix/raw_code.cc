#include "lib/posix/raw_code.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/raw_numbers.h"
#include "lib/posix/each_sock.h"
#include "lib/posix/own_code.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix::raw_code {
namespace {

using rendezvous::Conductor;

enum class Verdict : unsigned char { kUnknown, kNone, kMayUseStreams };

// Between two looks at what is mapped; and looks take no more of the time than
// one part in so many.
constexpr std::uint64_t kApartNs = 1'000'000'000;
constexpr std::uint64_t kShare = 50;
// So much is read in one turn of the conductor.
constexpr std::uint64_t kTurn = 16 << 20;
constexpr std::uint64_t kAll = std::uint64_t{1} << 46;
// An open whose end is not seen is over by then.
constexpr std::uint64_t kUnseenNs = 1'000'000'000;

std::atomic<Verdict> verdict{Verdict::kUnknown};
std::atomic<std::uint64_t> next_ns{0};
// Until then no search begins.
std::atomic<std::uint64_t> unseen_until_ns{0};
// How many streams wait for the answer.
std::atomic<int> waiting_count{0};

// What has been looked at.
struct Seen {
  std::uint64_t begin, end, inode;
  auto operator<=>(const Seen&) const = default;
};

// One look, which may take several turns.
class Look {
 public:
  // `known`: what need not be read again.
  bool Begin(const std::set<Seen>& known, const std::set<std::string>& ids) {
    std::vector<OwnCode::Range> all;
    if (!code_.List(&all)) return false;
    for (OwnCode::Range& one : all) {
      if (!known.contains(SeenOf(one)) && !ids.contains(one.build_id)) {
        ranges_.push_back(std::move(one));
      }
    }
    at_ = ranges_.empty() ? 0 : ranges_.front().code.begin;
    return true;
  }

  // Reads on; true: that was all, or enough is known.
  bool Step(std::uint64_t most) {
    while (index_ < ranges_.size() && culprit_.empty()) {
      const OwnCode::Range& one = ranges_[index_];
      const std::uint64_t to = std::min(one.code.end, at_ + most);
      std::vector<base::SystemCall> found;
      OwnMemory memory;
      // (What has gone meanwhile was a library, or is listed again.)
      const bool readable =
          base::FindSystemCalls(&memory, one.code, at_, to, &found);
      for (const base::SystemCall& call : found) {
        if (culprit_.empty() && base::MayUseStreams(call)) Blame(one, call);
      }
      most -= std::min(most, to - at_);
      at_ = to;
      if (!readable || at_ >= one.code.end) {
        ++index_;
        if (index_ < ranges_.size()) at_ = ranges_[index_].code.begin;
      }
      if (most == 0) break;
    }
    return index_ >= ranges_.size() || !culprit_.empty();
  }

  void Remember(std::set<Seen>* known, std::set<std::string>* ids) const {
    for (const OwnCode::Range& one : ranges_) {
      known->insert(SeenOf(one));
      // (One that is cut into several segments has its name for each.)
      if (!one.build_id.empty() && Alone(one)) ids->insert(one.build_id);
    }
  }
  const std::string& culprit() const { return culprit_; }

 private:
  static Seen SeenOf(const OwnCode::Range& one) {
    return {one.code.begin, one.code.end, one.inode};
  }
  bool Alone(const OwnCode::Range& one) const {
    return std::count_if(ranges_.begin(), ranges_.end(),
                         [&](const auto& other) {
                           return other.build_id == one.build_id;
                         }) == 1;
  }
  void Blame(const OwnCode::Range& one, const base::SystemCall& call) {
    culprit_ = one.path.empty() ? "code that it has made" : one.path;
    culprit_ += " makes system calls of its own: ";
    culprit_ += base::NameOfCall(call);
  }

  OwnCode code_;  // whose memory the ranges read
  std::vector<OwnCode::Range> ranges_;
  std::size_t index_ = 0;
  std::uint64_t at_ = 0;
  std::string culprit_;
};

struct State {
  base::Latch latch;
  std::set<Seen> known RC_GUARDED_BY(latch);
  std::set<std::string> ids RC_GUARDED_BY(latch);
  std::vector<std::shared_ptr<Sock>> waiting RC_GUARDED_BY(latch);
  // The conductor's, which is under way.
  Look* look RC_GUARDED_BY(latch) = nullptr;
  // Its next turn will come.
  bool posted RC_GUARDED_BY(latch) = false;
  // More has come since it began.
  bool again RC_GUARDED_BY(latch) = false;
};

// (Nothing here has a destructor.)
State& Shared() {
  static State* const state = new State;
  return *state;
}

void Conclude(State& state, const Look& look, std::uint64_t began_ns)
    RC_REQUIRES(state.latch) {
  const std::uint64_t now = base::NowNs();
  if (!look.culprit().empty()) {
    RCSOCK_LOG(1, "no lanes: %s", look.culprit().c_str());
    verdict.store(Verdict::kMayUseStreams, std::memory_order_release);
    return;
  }
  look.Remember(&state.known, &state.ids);
  next_ns.store(now + std::max(kApartNs, kShare * (now - began_ns)),
                std::memory_order_relaxed);
  verdict.store(Verdict::kNone, std::memory_order_release);
}

// Of code that cannot be told nothing is certain.
void CannotTell() {
  RCSOCK_LOG(1, "no lanes: what code the program has cannot be told");
  verdict.store(Verdict::kMayUseStreams, std::memory_order_release);
}

void Turn();

void PostTurn(State& state) RC_REQUIRES(state.latch) {
  Conductor* conductor = Conductor::IfRunning();
  state.posted = conductor != nullptr;
  if (conductor != nullptr) conductor->Post(&Turn);
}

// True: it is over, and *waiting have their answer.
bool TurnLatched(State& state, std::vector<std::shared_ptr<Sock>>* waiting)
    RC_REQUIRES(state.latch) {
  const std::uint64_t began = base::NowNs();
  state.posted = false;
  const std::uint64_t until = unseen_until_ns.load(std::memory_order_relaxed);
  if (Conductor* conductor = Conductor::IfRunning();
      began < until && conductor != nullptr) {
    const auto ms = static_cast<std::uint32_t>((until - began) / 1'000'000);
    state.posted = conductor->After(ms + 1, &Turn) != 0;
    if (state.posted) return false;
  }
  bool can_tell = true;
  if (verdict.load(std::memory_order_acquire) == Verdict::kMayUseStreams) {
    // (Another look has said so.)
    delete std::exchange(state.look, nullptr);
    waiting->swap(state.waiting);
    waiting_count.store(0, std::memory_order_relaxed);
    return true;
  }
  if (state.look == nullptr || state.again) {
    state.again = false;
    delete std::exchange(state.look, new Look);
    can_tell = state.look->Begin(state.known, state.ids);
  }
  if (!can_tell) {
    CannotTell();
  } else if (!state.look->Step(kTurn)) {
    PostTurn(state);
    return false;
  } else {
    Conclude(state, *state.look, began);
  }
  delete std::exchange(state.look, nullptr);
  waiting->swap(state.waiting);
  waiting_count.store(0, std::memory_order_relaxed);
  return true;
}

// On the conductor's thread.
void Turn() {
  std::vector<std::shared_ptr<Sock>> waiting;
  try {
    State& state = Shared();
    const base::LatchGuard lock(state.latch);
    if (!TurnLatched(state, &waiting)) return;
  } catch (...) {
    CannotTell();  // no memory
  }
  Conductor* conductor = Conductor::IfRunning();
  if (verdict.load(std::memory_order_acquire) == Verdict::kMayUseStreams) {
    PinProcessFromConductor(base::Reason::kRawCalls);
  }
  for (const std::shared_ptr<Sock>& sock : waiting) {
    if (verdict.load(std::memory_order_acquire) == Verdict::kMayUseStreams) {
      sock->SeekFailed(base::Reason::kRawCalls, true);
    } else if (conductor != nullptr && sock->Engaged()) {
      conductor->Seek(sock);
    }
  }
}

}  // namespace

Answer MaySeek(const std::shared_ptr<Sock>& sock, Conductor* conductor) {
  if (OwnFace() != Face::kPreload) return Answer::kMay;
  switch (verdict.load(std::memory_order_acquire)) {
    case Verdict::kMayUseStreams:
      return Answer::kNever;
    case Verdict::kNone:
      if (base::NowNs() < next_ns.load(std::memory_order_relaxed)) {
        return Answer::kMay;
      }
      break;
    case Verdict::kUnknown:
      break;
  }
  try {
    State& state = Shared();
    const base::LatchGuard lock(state.latch);
    state.waiting.push_back(sock);
    waiting_count.fetch_add(1, std::memory_order_relaxed);
    if (!state.posted) {
      state.posted = true;
      conductor->Post(&Turn);
    }
    return Answer::kLater;
  } catch (...) {
    return Answer::kNever;  // no memory
  }
}

void Forget(const Sock* sock) {
  if (waiting_count.load(std::memory_order_relaxed) == 0) return;
  State& state = Shared();
  std::shared_ptr<Sock> gone;  // given back without the latch
  const base::LatchGuard lock(state.latch);
  auto& all = state.waiting;
  const auto one = std::find_if(all.begin(), all.end(), [&](const auto& other) {
    return other.get() == sock;
  });
  if (one == all.end()) return;
  gone = std::move(*one);
  all.erase(one);
  waiting_count.fetch_sub(1, std::memory_order_relaxed);
}

void AfterOpen() {
  if (verdict.load(std::memory_order_acquire) != Verdict::kNone) {
    // (A look that is under way, or the first one, has it.)
    if (Conductor::IfRunning() != nullptr) {
      const Critical critical;
      State& state = Shared();
      const base::LatchGuard lock(state.latch);
      state.again = true;
    }
    return;
  }
  const int saved = errno;
  bool pin = false;
  try {
    const Critical critical;
    const base::InternalScope internal;
    State& state = Shared();
    const base::LatchGuard lock(state.latch);
    const std::uint64_t began = base::NowNs();
    Look look;
    if (!look.Begin(state.known, state.ids)) {
      CannotTell();
    } else {
      look.Step(kAll);
      Conclude(state, look, began);
    }
  } catch (...) {
    CannotTell();  // no memory
  }
  pin = verdict.load(std::memory_order_acquire) == Verdict::kMayUseStreams;
  if (pin) PinProcess(base::Reason::kRawCalls);
  errno = saved;
}

void BeforeUnseenOpen() {
  if (verdict.load(std::memory_order_acquire) != Verdict::kNone) {
    AfterOpen();
    return;
  }
  const int saved = errno;
  unseen_until_ns.store(base::NowNs() + kUnseenNs, std::memory_order_relaxed);
  auto none = Verdict::kNone;
  verdict.compare_exchange_strong(none, Verdict::kUnknown);
  const std::uint64_t deadline = Sock::LeaveDeadline();
  ForEachSock([&](Sock* sock) {
    if (sock->Engaged()) sock->ToPlain(base::Reason::kRawCalls, deadline);
  });
  errno = saved;
}

void ForkLock() { Shared().latch.LockForFork(); }

void ForkUnlock(bool child) {
  State& state = Shared();
  state.latch.AssertHeld();
  if (child) {
    // (The child has no conductor: its streams look anew.)
    // What they hold is counted anew in the child: they are not given back.
    new (&state.waiting) std::vector<std::shared_ptr<Sock>>;
    waiting_count.store(0, std::memory_order_relaxed);
    state.posted = false;
    delete std::exchange(state.look, nullptr);
  }
  state.latch.UnlockAfterFork(child);
}

}  // namespace rcsock::posix::raw_code
