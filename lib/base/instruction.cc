#include "lib/base/instruction.h"

#include <cstring>

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

// The opcodes of one byte, except those that Decode treats apart.
std::uint8_t ShapeOne(std::uint8_t op) {
  if (op < 0x40) {
    const std::uint8_t low = op & 7;
    if (low < 4) return kModrm;
    if (low == 4) return kByte;
    return low == 5 ? kFull : kBad;
  }
  if (op < 0x60) return kNone;
  if (op >= 0x70 && op < 0x80) return kRelative8;
  if (op >= 0x84 && op <= 0x8f) return kModrm;
  if (op >= 0xb0 && op < 0xb8) return kByte;
  if (op >= 0xb8 && op < 0xc0) return kFull;
  if (op >= 0xd8 && op <= 0xdf) return kModrm;
  if (op >= 0xe0 && op <= 0xe3) return kRelative8;
  if (op >= 0xe4 && op <= 0xe7) return kByte;
  switch (op) {
    case 0x63:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
    case 0xf6:
    case 0xf7:
    case 0xfe:
    case 0xff:
      return kModrm;
    case 0x68:
    case 0xa9:
      return kFull;
    case 0x69:
    case 0x81:
    case 0xc7:
      return kModrm | kFull;
    case 0x6a:
    case 0xa8:
    case 0xcd:
      return kByte;
    case 0x6b:
    case 0x80:
    case 0x83:
    case 0xc0:
    case 0xc1:
    case 0xc6:
      return kModrm | kByte;
    case 0xc2:
    case 0xca:
      return kWord;
    case 0xc8:
      return kWord | kByte;
    case 0xe8:
    case 0xe9:
      return kRelative;
    case 0xeb:
      return kRelative8;
    case 0x60:
    case 0x61:
    case 0x62:
    case 0x82:
    case 0x9a:
    case 0xc4:
    case 0xc5:
    case 0xce:
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xea:
      return kBad;
    default:
      return kNone;
  }
}

// The opcodes behind 0f.
std::uint8_t Shape0f(std::uint8_t op) {
  if (op >= 0x80 && op <= 0x8f) return kRelative;
  if (op >= 0xc8 && op <= 0xcf) return kNone;
  if (op >= 0x30 && op <= 0x37) return op == 0x36 ? kBad : kNone;
  if (op >= 0x70 && op <= 0x73) return kModrm | kByte;
  switch (op) {
    case 0x04:
    case 0x0a:
    case 0x0c:
    case 0x24:
    case 0x25:
    case 0x26:
    case 0x27:
    case 0x39:
    case 0x3b:
    case 0x3c:
    case 0x3d:
    case 0x3e:
    case 0x3f:
    case 0x7a:
    case 0x7b:
      return kBad;
    case 0x05:
    case 0x06:
    case 0x07:
    case 0x08:
    case 0x09:
    case 0x0b:
    case 0x0e:
    case 0x77:
    case 0xa0:
    case 0xa1:
    case 0xa2:
    case 0xa8:
    case 0xa9:
    case 0xaa:
      return kNone;
    case 0x0f:
    case 0xa4:
    case 0xac:
    case 0xba:
    case 0xc2:
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return kModrm | kByte;
    default:
      return kModrm;
  }
}

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
      shape = ShapeOne(op);
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
    return Shape0f(op);
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
    return (Shape0f(to_->opcode) & kByte) != 0 ? kModrm | kByte : kModrm;
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
    to_->immediate = value;
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

constexpr bool CallerSaved(int number) {
  // All but rbx, rsp, rbp and r12 to r15.
  return number != 3 && number != 4 && number != 5 && number < 12;
}

bool MayWriteOne(const Instruction& one, int number) {
  const std::uint8_t op = one.opcode;
  const bool rm = !one.memory && one.rm == number;
  if (op < 0x40) {
    const std::uint8_t low = op & 7;
    if ((op & 0x38) == 0x38) return false;  // cmp
    if (low < 2) return rm;
    if (low < 4) return one.reg == number;
    return number == 0;
  }
  if (op == 0x86 || op == 0x87) return rm || one.reg == number;          // xchg
  if (op >= 0x50 && op < 0x58) return number == 4;                       // push
  if (op >= 0x58 && op < 0x60) return one.reg == number || number == 4;  // pop
  if (op >= 0x70 && op < 0x80) return false;                             // jcc
  if (op >= 0xb0 && op < 0xc0) return one.reg == number;                 // mov
  switch (op) {
    case 0x63:
    case 0x69:
    case 0x6b:
    case 0x8a:
    case 0x8b:
    case 0x8d:
      return one.reg == number;
    case 0x68:
    case 0x6a:
      return number == 4;
    case 0x80:
    case 0x81:
    case 0x83:
      return one.digit != 7 && rm;
    case 0x84:
    case 0x85:
    case 0x90:
    case 0xa8:
    case 0xa9:
    case 0xcc:
    case 0xe9:
    case 0xeb:
      return false;
    case 0x88:
    case 0x89:
    case 0xc0:
    case 0xc1:
    case 0xc6:
    case 0xc7:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
    case 0xfe:
      return rm;
    case 0xe8:
      return CallerSaved(number);
    case 0xf6:
    case 0xf7:
      if (one.digit < 2) return false;
      return one.digit < 4 ? rm : number == 0 || number == 2;
    case 0xff:
      if (one.digit < 2) return rm;
      return one.digit == 2 || one.digit == 3 ? CallerSaved(number)
                                              : number == 4;
    default:
      return true;
  }
}

bool MayWrite0f(const Instruction& one, int number) {
  const std::uint8_t op = one.opcode;
  const bool rm = !one.memory && one.rm == number;
  if (op >= 0x80 && op < 0x90) return false;                     // jcc
  if (op >= 0x90 && op < 0xa0) return rm;                        // setcc
  if (op >= 0x40 && op < 0x50) return one.reg == number;         // cmovcc
  if (op == 0xb0 || op == 0xb1) return rm || number == 0;        // cmpxchg
  if (op == 0xc0 || op == 0xc1) return rm || one.reg == number;  // xadd
  switch (op) {
    case 0x05:
      return number == 0 || number == 1 || number == 11;
    case 0x0b:
    case 0x0d:
    case 0x18:
    case 0x1e:
    case 0x1f:
    case 0xa3:
      return false;
    case 0x10:
    case 0x11:
    case 0x12:
    case 0x13:
    case 0x14:
    case 0x16:
    case 0x17:
    case 0x28:
    case 0x29:
    case 0x2e:
    case 0x2f:
    case 0x54:
    case 0x57:
    case 0x58:
    case 0x59:
    case 0x5c:
    case 0x6e:
    case 0x6f:
    case 0x7f:
    case 0xd4:
    case 0xd6:
    case 0xef:
    case 0xeb:
    case 0xdb:
    case 0x60:
    case 0x61:
    case 0x62:
    case 0x6c:
    case 0x70:
    case 0xc6:
      return false;
    case 0xaf:
    case 0xb6:
    case 0xb7:
    case 0xbe:
    case 0xbf:
    case 0xbc:
    case 0xbd:
      return one.reg == number;
    case 0xa4:
    case 0xa5:
    case 0xab:
    case 0xac:
    case 0xad:
    case 0xb3:
    case 0xba:
    case 0xbb:
      return rm;
    default:
      return true;
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
  if (one.map == Map::kOne) return MayWriteOne(one, number);
  if (one.map == Map::k0f) return MayWrite0f(one, number);
  // Few of these instructions have a general register for their result.
  return true;
}

}  // namespace rcsock::base
