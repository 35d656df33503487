#include "lib/posix/socket/lane_state.h"

#include <atomic>
#include <cstdint>

#include "lib/base/dcheck.h"
#include "lib/base/log.h"

namespace rcsock::posix {
namespace {

const char* Name(LaneState::State state) {
  switch (state) {
    case LaneState::State::kOff:
      return "off";
    case LaneState::State::kNever:
      return "never";
    case LaneState::State::kIdle:
      return "idle";
    case LaneState::State::kSeeking:
      return "seeking";
    case LaneState::State::kHoping:
      return "hoping";
    case LaneState::State::kAgreed:
      return "agreed";
    case LaneState::State::kAdopted:
      return "adopted";
    case LaneState::State::kOnLane:
      return "on lane";
    case LaneState::State::kReturning:
      return "returning";
  }
  return "?";
}

}  // namespace

[[gnu::cold]] void LaneState::LogStep(const LaneState* state, Event event,
                                      unsigned from, unsigned to) {
  base::Log("lane state %p: event %d, %s to %s%s%s",
            static_cast<const void*>(state), static_cast<int>(event),
            Name(StateOf(from)), Name(StateOf(to)),
            (to & kPinned) != 0 ? ", pinned" : "",
            (to & kLeaving) != 0 ? ", leaving" : "");
}

bool LaneState::Step(Event event) {
  std::uint16_t from = word_.load(std::memory_order_seq_cst);
  std::uint16_t to;
  do {
    to = Next(event, from);
    RC_DCHECK(Legal(to));
    if (to == from) return false;
  } while (!word_.compare_exchange_weak(from, to, std::memory_order_seq_cst));
  if (base::log_level >= 3) [[unlikely]]
    LogStep(this, event, from, to);
  return true;
}

void LaneState::OnForkChild(bool lost) {
  Step(Event::kGiveUp);
  Step(lost ? Event::kStay : Event::kReturn);
  if (lost) Step(Event::kPin);
}

}  // namespace rcsock::posix
