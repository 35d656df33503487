#ifndef RCSOCK_LIB_BASE_ELF_CODE_H_
#define RCSOCK_LIB_BASE_ELF_CODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/code_scan.h"

namespace rcsock::base {

// What the headers of a program or a library say of its code.
struct ElfCode {
  std::vector<CodeRange> segments;
  std::uint64_t end = 0;  // of all that is loaded
  FrameTable functions;
  // The note of the build id, as it stands in the file. Empty: there is none.
  std::string build_id;
};

// Reads the headers; `at` is where the first byte of the file lies. Returns
// false if the bytes are no headers for this processor.
bool ReadElfCode(CodeBytes* bytes, std::uint64_t at, ElfCode* to);

// A file as it would be loaded: at address 0, or at the address that it asks
// for.
class ElfFile : public CodeBytes {
 public:
  ~ElfFile() override;
  // Returns false if the file cannot be read, or is no ELF file.
  bool Open(const char* path);
  bool Read(std::uint64_t address, void* to, std::size_t size) override;
  const ElfCode& code() const { return code_; }
  // Returns the names of the libraries that the file needs.
  std::vector<std::string> Needed();

 private:
  struct Segment {
    std::uint64_t begin, size, offset;
  };
  bool ReadString(std::uint64_t address, std::string* to);

  const std::uint8_t* file_ = nullptr;
  std::uint64_t size_ = 0;
  std::vector<Segment> loads_;
  std::uint64_t dynamic_ = 0;
  std::uint64_t dynamic_size_ = 0;
  ElfCode code_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ELF_CODE_H_
