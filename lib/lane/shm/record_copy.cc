#include "lib/lane/shm/record_copy.h"

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/copy.h"

namespace rcsock::lane::shm {

void RecordCopy::BeginTurn(int turn) {
  turn_ = static_cast<std::uint8_t>(turn);
  left_ = turn == 0 ? wait_ : 2 * kLap;
}

bool RecordCopy::OtherIsBetter() const {
  if (waited_) {
    // The other way must be better by an eighth: a smaller gain makes no
    // difference.
    return 9 * (other_.ticks + other_.gaps) < 8 * (own_.ticks + own_.gaps);
  }
  return streams_ ? other_.ticks < limits_.back * own_.ticks
                  : limits_.gain * other_.ticks < own_.ticks;
}

void RecordCopy::EndTurn() {
  if (turn_ == 0) {
    ended_ = 0;
    waited_ = false;
    BeginTurn(1);
    return;
  }
  if (!OthersTurn()) {
    BeginTurn(turn_ + 1);
    return;
  }
  if (!OtherIsBetter()) {
    wait_ = std::min(wait_ * 2, kLongestWait);
    BeginTurn(0);
  } else if (turn_ == 2 * kPairs) {
    streams_ = !streams_;
    wait_ = kFirstWait;
    BeginTurn(0);
  } else {
    BeginTurn(turn_ + 1);
  }
  own_ = other_ = {};
  waited_ = false;
}

void RecordCopy::Took(std::size_t n, std::uint64_t ticks, std::uint64_t gap) {
  if (measures() && left_ <= kLap) {
    Sums& sums = OthersTurn() ? other_ : own_;
    sums.ticks += ticks;
    sums.gaps += gap;
  }
  left_ -= std::min<std::uint32_t>(left_, static_cast<std::uint32_t>(n));
  if (left_ == 0) EndTurn();
}

void RecordCopy::CopyLong(std::byte* to, const std::byte* from, std::size_t n) {
  const std::uint64_t begin = measures() ? base::Ticks() : 0;
  if (streams()) {
    base::StreamCopy(to, from, n);
  } else {
    base::LongCopy(to, from, n);
  }
  if (!measures()) {
    Took(n, 0, 0);
    return;
  }
  const std::uint64_t end = base::Ticks();
  const std::uint64_t gap = ended_ == 0 ? 0 : begin - ended_;
  ended_ = end;
  Took(n, end - begin, gap);
}

}  // namespace rcsock::lane::shm
