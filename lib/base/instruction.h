#ifndef RCSOCK_LIB_BASE_INSTRUCTION_H_
#define RCSOCK_LIB_BASE_INSTRUCTION_H_

#include <cstddef>
#include <cstdint>

namespace rcsock::base {

// One machine instruction of x86-64: its length, and the parts that tell what
// it does with the general registers.
struct Instruction {
  enum class Map : std::uint8_t { kOne, k0f, k0f38, k0f3a, kVector };
  std::uint8_t length = 0;
  std::uint8_t opcode_at = 0;  // of the first byte that is no prefix
  Map map = Map::kOne;
  std::uint8_t opcode = 0;
  bool has_modrm = false;
  bool wide = false;       // REX.W
  bool memory = false;     // the second operand of modrm is in memory
  std::uint8_t reg = 0;    // the register of modrm.reg, or of the opcode
  std::uint8_t rm = 0;     // the register of modrm.rm, if not `memory`
  std::uint8_t digit = 0;  // modrm.reg without REX
  // The last of the instruction's immediates, or the distance of a direct
  // branch.
  std::int64_t immediate = 0;
};

// Reads the instruction at `code`, where `size` bytes can be read. Returns
// false if these bytes are no instruction, or only a part.
bool Decode(const std::uint8_t* code, std::size_t size, Instruction* to);

// Returns true for a jump or call to a place that the instruction names.
bool IsDirectBranch(const Instruction& one);
// Returns true if the next instruction in memory does not run next.
bool EndsFlow(const Instruction& one);
// Returns true if the instruction may change general register `number` (0:
// rax), or if this is not known.
bool MayWrite(const Instruction& one, int number);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_INSTRUCTION_H_
