#include "lib/posix/lifecycle/own_code.h"

#include <elf.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "lib/base/elf_code.h"
#include "lib/base/file_text.h"
#include "lib/base/raw_numbers.h"
#include "lib/base/unique_fd.h"

namespace rcsock::posix {
namespace {

// A file of this size lists a million mappings.
constexpr std::size_t kMostOfMaps = 128 << 20;
constexpr int kMostLinkMaps = 100'000;

std::uint64_t Address(const void* of) {
  return reinterpret_cast<std::uint64_t>(of);
}

bool ReadFile(const char* path, std::vector<char>* to) {
  const base::UniqueFd fd(base::OpenText(path));
  if (!fd.ok()) return false;
  std::size_t used = 0;
  to->resize(16 << 10);
  for (;;) {
    const long n =
        ::syscall(SYS_read, fd.get(), to->data() + used, to->size() - used - 1);
    if (n < 0 || used > kMostOfMaps) return false;
    used += static_cast<std::size_t>(n);
    if (n == 0) break;
    if (to->size() - used < 8192) to->resize(2 * to->size());
  }
  to->resize(used);
  to->push_back('\0');
  return true;
}

// Parts of glibc that are libraries of their own. libm and libmvec make no
// system calls.  The others are of versions before 2.34, and the hooks cover
// what they export.
bool IsPartOfLibc(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return false;
  const std::string_view name = std::string_view(path).substr(slash + 1);
  struct Part {
    std::string_view name;  // the file or, before 2.34, a link
    std::string_view file;  // before 2.34, with the version behind it
  };
  constexpr Part kParts[] = {{"libm.so.6", "libm-2."},
                             {"libmvec.so.1", "libmvec-2."},
                             {"libdl.so.2", "libdl-2."},
                             {"libutil.so.1", "libutil-2."},
                             {"libpthread.so.0", "libpthread-2."},
                             {"librt.so.1", "librt-2."},
                             {"libanl.so.1", "libanl-2."},
                             {"libresolv.so.2", "libresolv-2."}};
  for (const Part& part : kParts) {
    if (name == part.name ||
        (name.starts_with(part.file) && name.ends_with(".so"))) {
      return true;
    }
  }
  return false;
}

// Returns a value that changes with the content of the file at `path`, or an
// empty value if the file at `path` is not `inode`.
std::string StampOf(const char* path, std::uint64_t inode) {
  struct stat status {};
  if (::syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) != 0 ||
      status.st_ino != inode) {
    return "";
  }
  const std::int64_t parts[] = {status.st_size, status.st_mtim.tv_sec,
                                status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
                                status.st_ctim.tv_nsec};
  return std::string(reinterpret_cast<const char*>(parts), sizeof parts);
}

}  // namespace

bool LoaderIsAtWork() {
  return __atomic_load_n(&_r_debug.r_state, __ATOMIC_ACQUIRE) !=
         r_debug::RT_CONSISTENT;
}

// The number of the calling thread: the first thread may have ended, and then
// its number has no memory.
bool OwnMemory::Read(std::uint64_t address, void* to, std::size_t size) {
  const iovec local{to, size};
  const iovec remote{reinterpret_cast<void*>(address), size};
  const long n = ::syscall(SYS_process_vm_readv, ::syscall(SYS_gettid), &local,
                           1, &remote, 1, 0);
  if (n == static_cast<long>(size)) return true;
  // A filter may refuse process_vm_readv with any errno.  And that call reads
  // no mapping that is only executable.  Reads of this file do.
  const base::UniqueFd fd(base::OpenText("/proc/thread-self/mem"));
  return fd.ok() && ::syscall(SYS_pread64, fd.get(), to, size, address) ==
                        static_cast<long>(size);
}

bool OwnCode::List(std::vector<Range>* to) {
  const int saved = errno;
  LearnExempt();
  bool ok = ReadMaps();
  if (!ok) {
    ok = ReadLinkMaps(to);
    errno = saved;
    return ok;
  }
  // The mappings of one image follow each other, from that of its headers on.
  std::size_t first = 0;
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    const Mapping& one = mappings_[i];
    const Mapping& head = mappings_[first];
    const bool same = i > first && one.inode != 0 && one.inode == head.inode &&
                      one.offset != 0 && one.path == head.path;
    // The zeroed memory of an image has no file.
    const bool within = i > first && head.inode != 0 && one.inode == 0 &&
                        one.path.empty() && !one.executable;
    if (!same && !within) first = i;
    if (!one.executable) continue;
    std::size_t last = i;
    while (last + 1 < mappings_.size() &&
           mappings_[last + 1].inode == mappings_[first].inode &&
           mappings_[last + 1].offset != 0) {
      ++last;
    }
    // The kernel keeps single instructions of the program for a tracer in
    // [uprobes], which no process can read.
    if (one.path.starts_with("[v") || one.path == "[uprobes]" ||
        IsExempt(mappings_[first].begin, mappings_[last].end) ||
        base::IsKnownLibrary(one.path) || IsPartOfLibc(one.path)) {
      continue;
    }
    Add(one, mappings_[first].begin, to);
  }
  errno = saved;
  return true;
}

void OwnCode::Add(const Mapping& one, std::uint64_t image,
                  std::vector<Range>* to) {
  Range range;
  range.device = one.device;
  range.inode = one.inode;
  range.path = one.path;
  range.writable = one.writable;
  base::ElfCode code;
  range.code.loose =
      one.inode == 0 || !base::ReadElfCode(&memory_, image, &code);
  range.code.begin = one.begin;
  range.code.end = one.end;
  range.code.functions = code.functions;
  range.build_id = code.build_id;
  if (range.inode != 0 && range.build_id.empty()) {
    range.stamp = StampOf(one.path.c_str(), one.inode);
  }
  // What lies on the last page behind the file is not read.
  for (const base::CodeRange& segment : code.segments) {
    if (segment.begin < one.end && segment.end > one.begin) {
      range.code.end = std::min(one.end, segment.end);
    }
  }
  to->push_back(std::move(range));
}

void OwnCode::LearnExempt() {
  static const char kOurs = 0;
  exempt_ = {Address(::gnu_get_libc_version()), Address(&kOurs),
             ::getauxval(AT_BASE),
             static_cast<std::uint64_t>(_r_debug.r_ldbase),
             ::getauxval(AT_SYSINFO_EHDR)};
}

bool OwnCode::IsExempt(std::uint64_t begin, std::uint64_t end) const {
  return std::any_of(exempt_.begin(), exempt_.end(), [&](std::uint64_t one) {
    return one >= begin && one < end;
  });
}

bool OwnCode::ReadMaps() {
  std::vector<char> text;
  if (!ReadFile("/proc/thread-self/maps", &text)) return false;
  mappings_.clear();
  for (char* line = text.data(); *line != '\0';) {
    char* end = std::strchr(line, '\n');
    if (end == nullptr) break;
    *end = '\0';
    Mapping one;
    if (ParseLine(line, &one)) mappings_.push_back(std::move(one));
    line = end + 1;
  }
  return !mappings_.empty();
}

// BEGIN-END PERMISSIONS OFFSET DEVICE INODE PATH
bool OwnCode::ParseLine(const char* line, Mapping* to) const {
  char* at = nullptr;
  to->begin = std::strtoull(line, &at, 16);
  if (*at != '-') return false;
  to->end = std::strtoull(at + 1, &at, 16);
  if (*at != ' ' || std::strlen(at) < 6) return false;
  to->writable = at[2] == 'w';
  to->executable = at[3] == 'x';
  to->offset = std::strtoull(at + 5, &at, 16);
  to->device = std::strtoull(at, &at, 16) << 32;
  if (*at != ':') return false;
  to->device |= std::strtoull(at + 1, &at, 16);
  at = std::strchr(at, ' ');
  if (at == nullptr) return false;
  to->inode = std::strtoull(at, &at, 10);
  while (*at == ' ') ++at;
  to->path = at;
  return true;
}

bool OwnCode::ReadLinkMaps(std::vector<Range>* to) {
  int left = kMostLinkMaps;
  for (const link_map* map = _r_debug.r_map; map != nullptr && --left > 0;) {
    link_map copy;
    char name[4096] = {};
    if (!memory_.Read(Address(map), &copy, sizeof copy)) return false;
    for (std::size_t i = 0; i + 1 < sizeof name; ++i) {
      if (!memory_.Read(Address(copy.l_name) + i, name + i, 1) || !name[i]) {
        break;
      }
    }
    // A program that does not move begins where its own headers say.
    std::uint64_t image = copy.l_addr;
    if (image == 0) image = ::getauxval(AT_PHDR) & ~std::uint64_t{4095};
    base::ElfCode code;
    if (base::ReadElfCode(&memory_, image, &code) &&
        !base::IsKnownLibrary(name) && !IsPartOfLibc(name)) {
      if (!IsExempt(image, code.end)) {
        for (const base::CodeRange& one : code.segments) {
          Range range;
          range.code = one;
          range.inode = image;
          range.path = name;
          range.build_id = code.build_id;
          to->push_back(std::move(range));
        }
      }
    }
    map = copy.l_next;
  }
  return left > 0;
}

}  // namespace rcsock::posix
