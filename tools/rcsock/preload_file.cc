#include "tools/rcsock/preload_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/base/unique_fd.h"

namespace rcsock::tools {
namespace {

// Bounds for a file that anybody may have made.
constexpr unsigned kMostSegments = 64;
constexpr std::uint64_t kMostEntries = 1024;

template <class T>
bool ReadAt(int fd, std::uint64_t at, T* to) {
  return ::pread(fd, to, sizeof *to, static_cast<off_t>(at)) ==
         static_cast<ssize_t>(sizeof *to);
}

// Returns the text up to the next 0.  Returns "" if it is longer than any name
// of rcsock's.
std::string TextAt(int fd, std::uint64_t at) {
  char text[64];
  const ssize_t n = ::pread(fd, text, sizeof text, static_cast<off_t>(at));
  const std::size_t size = n > 0 ? static_cast<std::size_t>(n) : 0;
  const std::size_t length = ::strnlen(text, size);
  return length < size ? std::string(text, length) : "";
}

std::string Soname(int fd) {
  Elf64_Ehdr header;
  if (!ReadAt(fd, 0, &header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64) {
    return "";
  }
  std::vector<Elf64_Phdr> loaded;
  Elf64_Phdr dynamic{};
  for (unsigned i = 0; i < std::min<unsigned>(header.e_phnum, kMostSegments);
       ++i) {
    Elf64_Phdr segment;
    if (!ReadAt(fd, header.e_phoff + i * sizeof segment, &segment)) return "";
    if (segment.p_type == PT_LOAD) loaded.push_back(segment);
    if (segment.p_type == PT_DYNAMIC) dynamic = segment;
  }
  std::uint64_t strings = 0;  // an address
  std::uint64_t name = 0;     // an offset in them
  const std::uint64_t entries =
      std::min(dynamic.p_filesz / sizeof(Elf64_Dyn), kMostEntries);
  for (std::uint64_t i = 0; i < entries; ++i) {
    Elf64_Dyn entry;
    if (!ReadAt(fd, dynamic.p_offset + i * sizeof entry, &entry)) return "";
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_STRTAB) strings = entry.d_un.d_ptr;
    if (entry.d_tag == DT_SONAME) name = entry.d_un.d_val;
  }
  if (name == 0) return "";
  for (const Elf64_Phdr& segment : loaded) {
    const std::uint64_t within = strings - segment.p_vaddr;
    if (strings >= segment.p_vaddr && within < segment.p_filesz) {
      return TextAt(fd, segment.p_offset + within + name);
    }
  }
  return "";
}

}  // namespace

bool IsPreload(const std::string& path) {
  // Opens plain files only: a device may answer to an open.
  const base::UniqueFd found(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!found.ok() || ::fstat(found.get(), &info) != 0 ||
      !S_ISREG(info.st_mode)) {
    return false;
  }
  const std::string again = "/proc/self/fd/" + std::to_string(found.get());
  const base::UniqueFd file(::open(again.c_str(), O_RDONLY | O_CLOEXEC));
  return file.ok() && Soname(file.get()) == kPreloadName;
}

}  // namespace rcsock::tools
