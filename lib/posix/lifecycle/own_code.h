#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_OWN_CODE_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_OWN_CODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/code_scan.h"

namespace rcsock::posix {

// The memory of this process.  A read of memory that is not there fails.
class OwnMemory : public base::CodeBytes {
 public:
  bool Read(std::uint64_t address, void* to, std::size_t size) override;
};

// The executable mappings of this process, without those whose system calls the
// hooks know: libc's, the loader's, the kernel's and rcsock's own.
class OwnCode {
 public:
  struct Range {
    base::CodeRange code;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::string path;  // empty: memory without a file
    std::string build_id;
    // The size and the times of a file without a build id; empty: not known.
    std::string stamp;
    bool writable = false;

    // Returns true if other code may lie there later, without a trace.
    bool MayChange() const {
      return inode == 0 || writable || (build_id.empty() && stamp.empty());
    }
  };
  // Lists the mappings.  False: that is impossible.
  bool List(std::vector<Range>* to);

 private:
  struct Mapping {
    std::uint64_t begin, end, offset, device, inode;
    bool executable, writable;
    std::string path;
  };
  bool ReadMaps();
  bool ParseLine(const char* line, Mapping* to) const;
  // For systems where /proc is not mounted.
  bool ReadLinkMaps(std::vector<Range>* to);
  void Add(const Mapping& one, std::uint64_t image, std::vector<Range>* to);
  bool IsExempt(std::uint64_t begin, std::uint64_t end) const;
  void LearnExempt();

  OwnMemory memory_;
  std::vector<Mapping> mappings_;
  std::vector<std::uint64_t> exempt_;  // addresses in exempt images
};

// Returns true while the loader adds an image to its list, or removes an image.
bool LoaderIsAtWork();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_OWN_CODE_H_
