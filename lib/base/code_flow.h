#ifndef RCSOCK_LIB_BASE_CODE_FLOW_H_
#define RCSOCK_LIB_BASE_CODE_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/base/instruction.h"

namespace rcsock::base {

// The instructions of one function, and where its jumps lead.
class CodeFlow {
 public:
  enum class Found : std::uint8_t { kYes, kNo, kUnknown };

  // Decodes `code` from `begin` on. kYes: an instruction with the opcode 0f 05
  // stands at `target`. kNo: `target` is inside another instruction. kUnknown:
  // some bytes before `target` are no instruction.
  Found Follow(const std::uint8_t* code, std::size_t size, std::size_t begin,
               std::size_t target);

  // Adds to `to` what general register `number` may hold when the instruction
  // at `target` runs. Returns false if one of the values cannot be found.
  bool Values(int number, std::vector<std::int64_t>* to);

  // Returns true if the code behind `target` looks like the end of a system
  // call: a return, or a test of the result.
  bool ReturnsOrTests() const;

 private:
  struct Step {
    std::size_t at;
    Instruction one;
  };
  // The value of a register before a step.
  struct State {
    std::size_t step;
    int number;
    bool operator==(const State&) const = default;
  };

  std::vector<std::pair<std::size_t, std::size_t>>::const_iterator FirstJump(
      std::size_t step) const;
  bool Named(std::size_t step) const;
  bool FallsInto(std::size_t step) const;
  bool Back(std::size_t step, int number, std::vector<std::int64_t>* to);
  void Visit(std::size_t step, int number);

  std::vector<Step> steps_;
  // Where a jump leads, and the step that jumps.
  std::vector<std::pair<std::size_t, std::size_t>> jumps_;
  std::vector<State> states_;
  std::size_t target_ = 0;  // the step at the target
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CODE_FLOW_H_
