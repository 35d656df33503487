#include "lib/base/instruction.h"

#include <cstring>
#include <initializer_list>

namespace rcsock::base {
namespace {

using Map = Instruction::Map;

enum Shape : std::uint8_t {
  kBad = 0,
  kNone = 1,        // the opcode alone
  kModrm = 2,       // then a modrm byte
  kByte = 4,        // an immediate of one byte
  kWord = 8,        // ... of two bytes
  kFull = 16,       // ... of four bytes, or two with the prefix 66
  kRelative = 32,   // a distance of four bytes
  kRelative8 = 64,  // ... of one byte
};

// A value for each opcode of a map.
class OpcodeTable {
 public:
  constexpr explicit OpcodeTable(std::uint8_t rest) {
    for (std::uint8_t& value : values_) value = rest;
  }
  constexpr OpcodeTable& Range(int first, int last, std::uint8_t value) {
    for (int op = first; op <= last; ++op) values_[op] = value;
    return *this;
  }
  constexpr OpcodeTable& Each(std::initializer_list<int> ops,
                              std::uint8_t value) {
    for (const int op : ops) values_[op] = value;
    return *this;
  }
  constexpr std::uint8_t operator[](std::uint8_t op) const {
    return values_[op];
  }

 private:
  std::uint8_t values_[256] = {};
};

// The shapes of the opcodes of one byte, except those that Decode treats apart.
constexpr OpcodeTable ShapesOne() {
  OpcodeTable shapes(kNone);
  for (int op = 0; op < 0x40; op += 8) {
    shapes.Range(op, op + 3, kModrm)
        .Range(op + 4, op + 4, kByte)
        .Range(op + 5, op + 5, kFull)
        .Range(op + 6, op + 7, kBad);
  }
  return shapes
      .Each({0x60, 0x61, 0x62, 0x82, 0x9a, 0xc4, 0xc5, 0xce, 0xd4, 0xd5, 0xd6,
             0xea},
            kBad)
      .Each({0x63, 0xd0, 0xd1, 0xd2, 0xd3, 0xf6, 0xf7, 0xfe, 0xff}, kModrm)
      .Range(0x84, 0x8f, kModrm)
      .Range(0xd8, 0xdf, kModrm)
      .Each({0x6b, 0x80, 0x83, 0xc0, 0xc1, 0xc6}, kModrm | kByte)
      .Each({0x69, 0x81, 0xc7}, kModrm | kFull)
      .Each({0x6a, 0xa8, 0xcd}, kByte)
      .Range(0xb0, 0xb7, kByte)
      .Range(0xe4, 0xe7, kByte)
      .Each({0xc2, 0xca}, kWord)
      .Each({0xc8}, kWord | kByte)
      .Each({0x68, 0xa9}, kFull)
      .Range(0xb8, 0xbf, kFull)
      .Each({0xe8, 0xe9}, kRelative)
      .Each({0xeb}, kRelative8)
      .Range(0x70, 0x7f, kRelative8)
      .Range(0xe0, 0xe3, kRelative8);
}
constexpr OpcodeTable kShapesOne = ShapesOne();

// The shapes of the opcodes behind 0f.
constexpr OpcodeTable kShapes0f =
    OpcodeTable(kModrm)
        .Each({0x04, 0x0a, 0x0c, 0x24, 0x25, 0x26, 0x27, 0x36, 0x39, 0x3b, 0x3c,
               0x3d, 0x3e, 0x3f, 0x7a, 0x7b},
              kBad)
        .Each({0x05, 0x06, 0x07, 0x08, 0x09, 0x0b, 0x0e, 0x77, 0xa0, 0xa1, 0xa2,
               0xa8, 0xa9, 0xaa},
              kNone)
        .Range(0x30, 0x35, kNone)
        .Each({0x37}, kNone)
        .Range(0xc8, 0xcf, kNone)
        .Each({0x0f, 0xa4, 0xac, 0xba, 0xc2, 0xc4, 0xc5, 0xc6}, kModrm | kByte)
        .Range(0x70, 0x73, kModrm | kByte)
        .Range(0x80, 0x8f, kRelative);

// Reads one instruction from its first byte to its last.
class Reader {
 public:
  Reader(const std::uint8_t* code, std::size_t size, Instruction* to)
      : code_(code), size_(size < kMost ? size : kMost), to_(to) {}

  bool Read() {
    *to_ = Instruction{};
    std::uint8_t op = 0;
    if (!Prefixes(&op)) return false;
    to_->opcode_at = static_cast<std::uint8_t>(at_ - 1);
    std::uint8_t shape = 0;
    if (op == 0xc4 || op == 0xc5 || op == 0x62) {
      shape = Vector(op);
    } else if (op == 0x0f) {
      shape = Escaped();
    } else {
      to_->opcode = op;
      to_->reg = static_cast<std::uint8_t>((op & 7) | (rex_ & 1) << 3);
      shape = kShapesOne[op];
    }
    if (shape == kBad) return false;
    if ((shape & kModrm) != 0 && !Modrm()) return false;
    if (!Immediates(shape)) return false;
    to_->length = static_cast<std::uint8_t>(at_);
    return true;
  }

 private:
  static constexpr std::size_t kMost = 15;

  bool Byte(std::uint8_t* to) {
    if (at_ >= size_) return false;
    *to = code_[at_++];
    return true;
  }

  bool Prefixes(std::uint8_t* op) {
    for (;;) {
      if (!Byte(op)) return false;
      switch (*op) {
        case 0x66:
          short_ = true;
          rex_ = 0;
          continue;
        case 0x67:
          address32_ = true;
          rex_ = 0;
          continue;
        case 0x26:
        case 0x2e:
        case 0x36:
        case 0x3e:
        case 0x64:
        case 0x65:
        case 0xf0:
        case 0xf2:
        case 0xf3:
          rex_ = 0;
          continue;
        default:
          if ((*op & 0xf0) != 0x40) {
            to_->wide = (rex_ & 8) != 0;
            return true;
          }
          rex_ = *op;
      }
    }
  }

  std::uint8_t Escaped() {
    std::uint8_t op = 0;
    if (!Byte(&op)) return kBad;
    if (op == 0x38 || op == 0x3a) {
      to_->map = op == 0x38 ? Map::k0f38 : Map::k0f3a;
      if (!Byte(&to_->opcode)) return kBad;
      return op == 0x38 ? kModrm : kModrm | kByte;
    }
    to_->map = Map::k0f;
    to_->opcode = op;
    to_->reg = static_cast<std::uint8_t>((op & 7) | (rex_ & 1) << 3);
    return kShapes0f[op];
  }

  std::uint8_t Vector(std::uint8_t first) {
    to_->map = Map::kVector;
    std::uint8_t map = 1;
    std::uint8_t rest[2] = {};
    if (!Byte(&map)) return kBad;
    if (first == 0xc4) {
      map &= 0x1f;
      if (!Byte(rest)) return kBad;
    } else if (first == 0x62) {
      map &= 7;
      if (!Byte(rest) || !Byte(rest + 1)) return kBad;
    } else {
      map = 1;
    }
    if (!Byte(&to_->opcode)) return kBad;
    if (map == 3) return kModrm | kByte;
    if (map == 2 || map == 5 || map == 6) return kModrm;
    if (map != 1) return kBad;
    if (to_->opcode == 0x77 && first != 0x62) return kNone;
    return (kShapes0f[to_->opcode] & kByte) != 0 ? kModrm | kByte : kModrm;
  }

  bool Modrm() {
    std::uint8_t modrm = 0;
    if (!Byte(&modrm)) return false;
    to_->has_modrm = true;
    const std::uint8_t mod = modrm >> 6;
    const std::uint8_t rm = modrm & 7;
    to_->digit = (modrm >> 3) & 7;
    to_->reg = static_cast<std::uint8_t>(to_->digit | (rex_ & 4) << 1);
    to_->rm = static_cast<std::uint8_t>(rm | (rex_ & 1) << 3);
    to_->memory = mod != 3;
    if (mod == 3) return true;
    std::uint8_t sib = 0;
    if (rm == 4 && !Byte(&sib)) return false;
    if (mod == 1) return Skip(1);
    if (mod == 2 || rm == 5 || (rm == 4 && (sib & 7) == 5)) {
      return (mod == 0 || mod == 2) ? Skip(4) : true;
    }
    return true;
  }

  bool Skip(std::size_t count) {
    at_ += count;
    return at_ <= size_;
  }

  template <class T>
  bool Take() {
    T value;
    if (!Skip(sizeof value)) return false;
    std::memcpy(&value, code_ + at_ - sizeof value, sizeof value);
    to_->immediate = std::int64_t{value};
    return true;
  }

  bool Immediates(std::uint8_t shape) {
    const std::uint8_t op = to_->opcode;
    if (to_->map == Map::kOne) {
      if (op >= 0xa0 && op <= 0xa3) return Skip(address32_ ? 4 : 8);
      if (op >= 0xb8 && op <= 0xbf && to_->wide) return Take<std::int64_t>();
      // Only test has an immediate in this group.
      if (op == 0xf6 && to_->digit < 2) shape |= kByte;
      if (op == 0xf7 && to_->digit < 2) shape |= kFull;
    }
    if ((shape & kWord) != 0 && !Take<std::int16_t>()) return false;
    if ((shape & (kByte | kRelative8)) != 0 && !Take<std::int8_t>()) {
      return false;
    }
    if ((shape & kFull) != 0 &&
        !(short_ && !to_->wide ? Take<std::int16_t>() : Take<std::int32_t>())) {
      return false;
    }
    return (shape & kRelative) == 0 || Take<std::int32_t>();
  }

  const std::uint8_t* const code_;
  const std::size_t size_;
  Instruction* const to_;
  std::size_t at_ = 0;
  std::uint8_t rex_ = 0;
  bool short_ = false;
  bool address32_ = false;
};

// Which general registers an instruction may write.
enum Writes : std::uint8_t {
  kAny,       // not known: each of them
  kNo,        // none
  kRm,        // the register of modrm's rm
  kReg,       // the register of modrm's reg, or of the opcode
  kRegRm,     // both
  kRax,       // rax
  kRmRax,     // the register of modrm's rm, and rax
  kStack,     // rsp
  kRegStack,  // the register of the opcode, and rsp
  kCall,      // what a function may write
  kKernel,    // what a system call writes
  kGroup1,    // 80, 81, 83: the seventh is cmp
  kGroup3,    // f6, f7: test, not, neg, and four that multiply or divide
  kGroup5,    // ff: inc, dec, call, jmp, push
};

constexpr OpcodeTable WritesOne() {
  OpcodeTable writes(kAny);
  for (int op = 0; op < 0x38; op += 8) {
    writes.Range(op, op + 1, kRm).Range(op + 2, op + 3, kReg);
    writes.Range(op + 4, op + 7, kRax);
  }
  return writes
      .Range(0x38, 0x3f, kNo)        // cmp
      .Range(0x50, 0x57, kStack)     // push
      .Range(0x58, 0x5f, kRegStack)  // pop
      .Range(0x70, 0x7f, kNo)        // jcc
      .Each({0x86, 0x87}, kRegRm)    // xchg
      .Range(0xb0, 0xbf, kReg)       // mov
      .Each({0x63, 0x69, 0x6b, 0x8a, 0x8b, 0x8d}, kReg)
      .Each({0x68, 0x6a}, kStack)
      .Each({0x80, 0x81, 0x83}, kGroup1)
      .Each({0x84, 0x85, 0x90, 0xa8, 0xa9, 0xcc, 0xe9, 0xeb}, kNo)
      .Each({0x88, 0x89, 0xc0, 0xc1, 0xc6, 0xc7, 0xd0, 0xd1, 0xd2, 0xd3, 0xfe},
            kRm)
      .Each({0xe8}, kCall)
      .Each({0xf6, 0xf7}, kGroup3)
      .Each({0xff}, kGroup5);
}
constexpr OpcodeTable kWritesOne = WritesOne();

constexpr OpcodeTable kWrites0f =
    OpcodeTable(kAny)
        .Range(0x40, 0x4f, kReg)     // cmovcc
        .Range(0x80, 0x8f, kNo)      // jcc
        .Range(0x90, 0x9f, kRm)      // setcc
        .Each({0xb0, 0xb1}, kRmRax)  // cmpxchg
        .Each({0xc0, 0xc1}, kRegRm)  // xadd
        .Each({0x05}, kKernel)
        .Each({0x0b, 0x0d, 0x18, 0x1e, 0x1f, 0xa3}, kNo)
        .Each({0x10, 0x11, 0x12, 0x13, 0x14, 0x16, 0x17, 0x28, 0x29, 0x2e,
               0x2f, 0x54, 0x57, 0x58, 0x59, 0x5c, 0x60, 0x61, 0x62, 0x6c,
               0x6e, 0x6f, 0x70, 0x7f, 0xc6, 0xd4, 0xd6, 0xdb, 0xeb, 0xef},
              kNo)
        .Each({0xaf, 0xb6, 0xb7, 0xbc, 0xbd, 0xbe, 0xbf}, kReg)
        .Each({0xa4, 0xa5, 0xab, 0xac, 0xad, 0xb3, 0xba, 0xbb}, kRm);

constexpr bool CallerSaved(int number) {
  // All but rbx, rsp, rbp and r12 to r15.
  return number != 3 && number != 4 && number != 5 && number < 12;
}

// The groups in which modrm's reg says what the instruction is.
bool GroupDoesWrite(std::uint8_t group, const Instruction& one, int number) {
  const bool rm = !one.memory && one.rm == number;
  switch (group) {
    case kGroup1:
      return one.digit != 7 && rm;
    case kGroup3:
      if (one.digit < 2) return false;
      return one.digit < 4 ? rm : number == 0 || number == 2;
    default:
      if (one.digit < 2) return rm;
      return one.digit == 2 || one.digit == 3 ? CallerSaved(number)
                                              : number == 4;
  }
}

bool DoesWrite(std::uint8_t writes, const Instruction& one, int number) {
  const bool rm = !one.memory && one.rm == number;
  const bool reg = one.reg == number;
  switch (writes) {
    case kAny:
      return true;
    case kNo:
      return false;
    case kRm:
      return rm;
    case kReg:
      return reg;
    case kRegRm:
      return rm || reg;
    case kRax:
      return number == 0;
    case kRmRax:
      return rm || number == 0;
    case kStack:
      return number == 4;
    case kRegStack:
      return reg || number == 4;
    case kCall:
      return CallerSaved(number);
    case kKernel:
      return number == 0 || number == 1 || number == 11;
    default:
      return GroupDoesWrite(writes, one, number);
  }
}

}  // namespace

bool Decode(const std::uint8_t* code, std::size_t size, Instruction* to) {
  return Reader(code, size, to).Read();
}

bool IsDirectBranch(const Instruction& one) {
  const std::uint8_t op = one.opcode;
  if (one.map == Map::k0f) return op >= 0x80 && op < 0x90;
  if (one.map != Map::kOne) return false;
  return (op >= 0x70 && op < 0x80) || (op >= 0xe0 && op <= 0xe3) ||
         op == 0xe8 || op == 0xe9 || op == 0xeb;
}

bool EndsFlow(const Instruction& one) {
  const std::uint8_t op = one.opcode;
  if (one.map == Map::k0f) return op == 0x0b;
  if (one.map != Map::kOne) return false;
  return op == 0xe9 || op == 0xeb || op == 0xc2 || op == 0xc3 || op == 0xcc ||
         op == 0xf4 || (op == 0xff && (one.digit == 4 || one.digit == 5));
}

bool MayWrite(const Instruction& one, int number) {
  if (one.map == Map::kOne) {
    return DoesWrite(kWritesOne[one.opcode], one, number);
  }
  if (one.map == Map::k0f) return DoesWrite(kWrites0f[one.opcode], one, number);
  // Few of these instructions have a general register for their result.
  return true;
}

}  // namespace rcsock::base
