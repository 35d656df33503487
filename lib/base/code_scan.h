#ifndef RCSOCK_LIB_BASE_CODE_SCAN_H_
#define RCSOCK_LIB_BASE_CODE_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rcsock::base {

// Machine code to scan: memory of this process, or a file.
class CodeBytes {
 public:
  virtual ~CodeBytes() = default;
  // Returns false if not all of [address, address + size) can be read.
  virtual bool Read(std::uint64_t address, void* to, std::size_t size) = 0;
};

// Where functions begin and end, by the table that unwinders search
// (PT_GNU_EH_FRAME).
class FrameTable {
 public:
  struct Function {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // No functions are known.
  FrameTable() = default;
  // `at`: the address of .eh_frame_hdr.
  FrameTable(CodeBytes* bytes, std::uint64_t at);
  bool Find(std::uint64_t address, Function* to) const;
  // Returns false for an address far from all known functions, where constants
  // lie.
  bool MayBeCode(std::uint64_t address) const;

 private:
  std::uint64_t EntryAt(std::uint32_t index, std::uint64_t* frame) const;

  CodeBytes* bytes_ = nullptr;
  std::uint64_t at_ = 0;
  std::uint32_t count_ = 0;
  // From the first function to the last, and a little more.
  std::uint64_t code_begin_ = 0;
  std::uint64_t code_end_ = ~std::uint64_t{0};
};

// A `syscall` instruction, with one of the numbers that it may have.
struct SystemCall {
  // The number is known only at run time: an argument, for example.
  static constexpr int kAny = -1;
  std::uint64_t address = 0;
  int number = kAny;
  // The second argument of ioctl and fcntl.
  std::int64_t request = kAny;
};

// Code of one mapping, or of one segment of a file.
struct CodeRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  FrameTable functions;
  // The code may change, and no table lists its functions. An instruction
  // counts only if its number is seen.
  bool loose = false;
};

// Finds the `syscall` instructions of `range` that begin in [from, to), and
// their numbers. Returns false if a part of the range cannot be read.
bool FindSystemCalls(CodeBytes* bytes, const CodeRange& range,
                     std::uint64_t from, std::uint64_t to,
                     std::vector<SystemCall>* found);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CODE_SCAN_H_
