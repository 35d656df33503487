#include "lib/base/elf_code.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lib/base/unique_fd.h"

namespace rcsock::base {
namespace {

constexpr std::size_t kMostSegments = 256;
constexpr std::size_t kMostNotes = 4096;

bool IsOurs(const Elf64_Ehdr& head) {
  return std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
         head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_machine == EM_X86_64 &&
         (head.e_type == ET_EXEC || head.e_type == ET_DYN) &&
         head.e_phentsize == sizeof(Elf64_Phdr) && head.e_phnum != 0 &&
         head.e_phnum <= kMostSegments;
}

// Finds the build id among the notes at [at, at + size).
std::string FindBuildId(CodeBytes* bytes, std::uint64_t at,
                        std::uint64_t size) {
  size = std::min<std::uint64_t>(size, kMostNotes);
  std::vector<char> notes(size);
  if (size == 0 || !bytes->Read(at, notes.data(), size)) return "";
  const auto padded = [](std::uint64_t n) {
    return (n + 3) & ~std::uint64_t{3};
  };
  for (std::uint64_t i = 0; i + sizeof(Elf64_Nhdr) <= size;) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data() + i, sizeof note);
    const std::uint64_t name = i + sizeof note;
    const std::uint64_t text = name + padded(note.n_namesz);
    const std::uint64_t next = text + padded(note.n_descsz);
    if (text > size || next > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes.data() + name, "GNU", 4) == 0) {
      return std::string(notes.data() + text, note.n_descsz);
    }
    i = next;
  }
  return "";
}

}  // namespace

bool ReadElfCode(CodeBytes* bytes, std::uint64_t at, ElfCode* to) {
  Elf64_Ehdr head;
  if (!bytes->Read(at, &head, sizeof head) || !IsOurs(head)) return false;
  std::vector<Elf64_Phdr> segments(head.e_phnum);
  if (!bytes->Read(at + head.e_phoff, segments.data(),
                   segments.size() * sizeof(Elf64_Phdr))) {
    return false;
  }
  // Where address 0 of the file lies.
  std::uint64_t bias = at;
  for (const Elf64_Phdr& one : segments) {
    if (one.p_type == PT_LOAD && one.p_offset < 4096) {
      bias = at - (one.p_vaddr - one.p_offset);
      break;
    }
  }
  for (const Elf64_Phdr& one : segments) {
    const std::uint64_t begin = bias + one.p_vaddr;
    if (one.p_type == PT_LOAD) to->end = std::max(to->end, begin + one.p_memsz);
    if (one.p_type == PT_GNU_EH_FRAME) {
      to->functions = FrameTable(bytes, begin);
    } else if (one.p_type == PT_NOTE && to->build_id.empty()) {
      to->build_id = FindBuildId(bytes, begin, one.p_filesz);
    } else if (one.p_type == PT_LOAD && (one.p_flags & PF_X) != 0) {
      CodeRange range;
      range.begin = begin;
      range.end = begin + one.p_filesz;
      if (range.end > range.begin) to->segments.push_back(range);
    }
  }
  for (CodeRange& range : to->segments) range.functions = to->functions;
  return true;
}

ElfFile::~ElfFile() {
  if (file_ != nullptr) {
    ::munmap(const_cast<std::uint8_t*>(file_), static_cast<std::size_t>(size_));
  }
}

bool ElfFile::Open(const char* path) {
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!fd.ok() || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < static_cast<off_t>(sizeof(Elf64_Ehdr))) {
    return false;
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  void* at = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ,
                    MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return false;
  file_ = static_cast<const std::uint8_t*>(at);
  Elf64_Ehdr head;
  std::memcpy(&head, file_, sizeof head);
  if (!IsOurs(head) || head.e_phoff > size_ ||
      head.e_phnum * sizeof(Elf64_Phdr) > size_ - head.e_phoff) {
    return false;
  }
  std::uint64_t first = 0;
  for (unsigned i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr one;
    std::memcpy(&one, file_ + head.e_phoff + i * sizeof one, sizeof one);
    if (one.p_type == PT_DYNAMIC) {
      dynamic_ = one.p_vaddr;
      dynamic_size_ = one.p_filesz;
    }
    if (one.p_type != PT_LOAD || one.p_offset > size_ ||
        one.p_filesz > size_ - one.p_offset) {
      continue;
    }
    if (one.p_offset < 4096) first = one.p_vaddr - one.p_offset;
    loads_.push_back({one.p_vaddr, one.p_filesz, one.p_offset});
  }
  return ReadElfCode(this, first, &code_);
}

bool ElfFile::Read(std::uint64_t address, void* to, std::size_t size) {
  for (const Segment& one : loads_) {
    // The headers lie before the first segment's own bytes, in its page.
    const std::uint64_t slack = one.offset < 4096 ? one.offset : 0;
    const std::uint64_t begin = one.begin - slack;
    if (address < begin || address - begin > one.size + slack ||
        size > one.size + slack - (address - begin)) {
      continue;
    }
    std::memcpy(to, file_ + (one.offset - slack) + (address - begin), size);
    return true;
  }
  return false;
}

bool ElfFile::ReadString(std::uint64_t address, std::string* to) {
  to->clear();
  for (char c = 0; to->size() < 4096; to->push_back(c)) {
    if (!Read(address + to->size(), &c, 1)) return false;
    if (c == 0) return true;
  }
  return false;
}

std::vector<std::string> ElfFile::Needed() {
  std::vector<std::string> names;
  std::uint64_t strings = 0;
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i + sizeof(Elf64_Dyn) <= dynamic_size_;
       i += sizeof(Elf64_Dyn)) {
    Elf64_Dyn one;
    if (!Read(dynamic_ + i, &one, sizeof one) || one.d_tag == DT_NULL) break;
    if (one.d_tag == DT_STRTAB) strings = one.d_un.d_ptr;
    if (one.d_tag == DT_NEEDED) offsets.push_back(one.d_un.d_val);
  }
  std::string name;
  for (const std::uint64_t offset : offsets) {
    if (ReadString(strings + offset, &name)) names.push_back(name);
  }
  return names;
}

}  // namespace rcsock::base
