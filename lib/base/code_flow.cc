#include "lib/base/code_flow.h"

#include <algorithm>

namespace rcsock::base {
namespace {

using Map = Instruction::Map;

constexpr std::size_t kMostStates = 4096;

bool IsCall(const Instruction& one) {
  return one.map == Map::kOne && one.opcode == 0xe8;
}

// Returns true if the instruction puts a constant into the register.
bool IsConstant(const Instruction& one, int number, std::int64_t* value) {
  if (one.map != Map::kOne) return false;
  const bool moves = one.opcode >= 0xb8 && one.opcode < 0xc0;
  if (moves ? one.reg == number
            : one.opcode == 0xc7 && !one.memory && one.rm == number) {
    // A move of 32 bits clears the upper half.
    *value = one.wide ? one.immediate
                      : static_cast<std::int64_t>(
                            static_cast<std::uint32_t>(one.immediate));
    return true;
  }
  *value = 0;
  const bool clears = one.opcode == 0x31 || one.opcode == 0x33 ||
                      one.opcode == 0x29 || one.opcode == 0x2b;
  return clears && !one.memory && one.rm == number && one.reg == number;
}

// Returns the register that the instruction copies into `number`, or -1.
int CopiesFrom(const Instruction& one, int number) {
  if (one.map != Map::kOne || one.memory) return -1;
  if (one.opcode == 0x89 && one.rm == number) return one.reg;
  if (one.opcode == 0x8b && one.reg == number) return one.rm;
  return -1;
}

bool IsPop(const Instruction& one, int number) {
  return one.map == Map::kOne && one.opcode >= 0x58 && one.opcode < 0x60 &&
         one.reg == number;
}

bool IsPushOfConstant(const Instruction& one) {
  return one.map == Map::kOne && (one.opcode == 0x6a || one.opcode == 0x68);
}

bool IsAnyCall(const Instruction& one) {
  return IsCall(one) ||
         (one.map == Map::kOne && one.opcode == 0xff && one.digit == 2);
}

bool IsFiller(const Instruction& one) {
  return (one.map == Map::kOne && one.opcode == 0x90) ||
         (one.map == Map::k0f && one.opcode == 0x1f);
}

bool IsTestOfResult(const Instruction& one) {
  if (one.map != Map::kOne) return false;
  if (one.opcode == 0x3d) return true;  // cmp eax, imm
  if (one.opcode == 0x81 || one.opcode == 0x83) {
    return one.digit == 7 && !one.memory && one.rm == 0;
  }
  return one.opcode == 0x85 && !one.memory && one.rm == 0 && one.reg == 0;
}

}  // namespace

CodeFlow::Found CodeFlow::Follow(const std::uint8_t* code, std::size_t size,
                                 std::size_t begin, std::size_t target) {
  steps_.clear();
  jumps_.clear();
  Found found = Found::kUnknown;
  for (std::size_t at = begin; at < size;) {
    Step step{at, {}};
    // Behind the target this only hides jumps back.
    if (!Decode(code + at, size - at, &step.one)) break;
    const std::size_t next = at + step.one.length;
    if (at <= target && next > target) {
      if (at + step.one.opcode_at != target || step.one.map != Map::k0f) {
        return Found::kNo;
      }
      target_ = steps_.size();
      found = Found::kYes;
    }
    if (IsDirectBranch(step.one) && !IsCall(step.one)) {
      jumps_.emplace_back(next + static_cast<std::size_t>(step.one.immediate),
                          steps_.size());
    }
    steps_.push_back(step);
    at = next;
  }
  std::sort(jumps_.begin(), jumps_.end());
  return found;
}

bool CodeFlow::Values(int number, std::vector<std::int64_t>* to) {
  states_.clear();
  Visit(target_, number);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (i >= kMostStates) return false;
    const State state = states_[i];
    const bool named = Named(state.step);
    bool falls = FallsInto(state.step);
    // No compiler keeps a value in a caller-saved register across a call. So if
    // a value is used there, the call before it never returns.
    if (falls && named && state.number != 0 &&
        IsAnyCall(steps_[state.step - 1].one) &&
        MayWrite(steps_[state.step - 1].one, state.number)) {
      falls = false;
    }
    if (falls && !Back(state.step - 1, state.number, to)) return false;
    for (auto jump = FirstJump(state.step);
         jump != jumps_.end() && jump->first == steps_[state.step].at; ++jump) {
      Visit(jump->second, state.number);
    }
    // The value is the caller's, or comes by a jump through a register.
    if (state.step == 0 || (!falls && !named)) return false;
  }
  std::sort(to->begin(), to->end());
  to->erase(std::unique(to->begin(), to->end()), to->end());
  return !to->empty();
}

std::vector<std::pair<std::size_t, std::size_t>>::const_iterator
CodeFlow::FirstJump(std::size_t step) const {
  return std::lower_bound(
      jumps_.begin(), jumps_.end(),
      std::pair<std::size_t, std::size_t>{steps_[step].at, 0});
}

bool CodeFlow::Named(std::size_t step) const {
  const auto jump = FirstJump(step);
  return jump != jumps_.end() && jump->first == steps_[step].at;
}

// Returns true if the instruction that precedes this step in memory may run
// before it.
bool CodeFlow::FallsInto(std::size_t step) const {
  // Filler behind a jump is no code.
  std::size_t before = step;
  while (before > 0 && IsFiller(steps_[before - 1].one)) {
    --before;
    if (Named(before)) return true;
  }
  return before > 0 ? !EndsFlow(steps_[before - 1].one) : step > 0;
}

void CodeFlow::Visit(std::size_t step, int number) {
  const State state{step, number};
  if (std::find(states_.begin(), states_.end(), state) == states_.end()) {
    states_.push_back(state);
  }
}

// Finds the register's value behind `step`.
bool CodeFlow::Back(std::size_t step, int number,
                    std::vector<std::int64_t>* to) {
  const Instruction& one = steps_[step].one;
  std::int64_t value = 0;
  if (IsConstant(one, number, &value)) {
    to->push_back(value);
    return true;
  }
  if (const int from = CopiesFrom(one, number); from >= 0) {
    Visit(step, from);
    return true;
  }
  if (IsPop(one, number)) {
    if (step == 0 || !IsPushOfConstant(steps_[step - 1].one)) return false;
    to->push_back(steps_[step - 1].one.immediate);
    return true;
  }
  if (MayWrite(one, number)) return false;
  Visit(step, number);
  return true;
}

bool CodeFlow::ReturnsOrTests() const {
  constexpr std::size_t kNear = 4;
  for (std::size_t i = 1; i <= kNear && target_ + i < steps_.size(); ++i) {
    const Instruction& one = steps_[target_ + i].one;
    if (i == 1 && IsTestOfResult(one)) return true;
    if (one.map == Map::kOne && one.opcode == 0xc3) return true;
  }
  return false;
}

}  // namespace rcsock::base
