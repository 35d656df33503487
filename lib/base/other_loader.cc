#include "lib/base/other_loader.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "lib/base/elf_hash.h"
#include "lib/base/env.h"
#include "lib/base/path.h"

namespace rcsock::base {
namespace {

bool Begins(const char* text, const char* with) {
  return std::strncmp(text, with, std::strlen(with)) == 0;
}

// Returns the loader of this program, or null. It is glibc's, whatever its
// name.
const char* OwnLoader() {
  const auto* segments =
      reinterpret_cast<const ElfW(Phdr)*>(::getauxval(AT_PHDR));
  const unsigned long count = ::getauxval(AT_PHNUM);
  const ElfW(Phdr)* loader = nullptr;
  std::uintptr_t base = 0;
  for (unsigned long i = 0; segments != nullptr && i < count; ++i) {
    if (segments[i].p_type == PT_INTERP) loader = &segments[i];
    if (segments[i].p_type == PT_PHDR) {
      base = reinterpret_cast<std::uintptr_t>(segments) - segments[i].p_vaddr;
    }
  }
  return loader == nullptr
             ? nullptr
             : reinterpret_cast<const char*>(base + loader->p_vaddr);
}

// glibc 2.17 has all that the preload needs (lib/base/old_glibc).
// tests/install/symbol_versions.py checks that.
constexpr const char kOldestVersion[] = "GLIBC_2.17";

// exec may be called on a thread's smallest stack, 16 KiB.  So all buffers are
// small here.  A loader whose path is longer than this is not looked into.
constexpr std::size_t kLongestPath = 256;

// ld-lsb is a link to glibc's loader, and ld.so may be a link to it. ld-2.31.so
// is an older name; ld64.so and ld.so.1 belong to other processors.
bool IsGlibcs(const char* loader) {
  const char* name = LastPart(loader);
  constexpr const char* kNames[] = {"ld-linux", "ld-lsb", "ld-2.", "ld.so",
                                    "ld64.so"};
  for (const char* one : kNames) {
    if (Begins(name, one)) return true;
  }
  const char* own = OwnLoader();
  return own != nullptr && std::strcmp(own, loader) == 0;
}

// The beginning of a file, which is usually all that is needed.
class Head {
 public:
  explicit Head(int fd) : fd_(fd) {
    const long n = ::syscall(SYS_pread64, fd, bytes_, sizeof bytes_, 0);
    if (n > 0) length_ = static_cast<std::size_t>(n);
  }
  bool Read(std::uint64_t at, void* to, std::size_t length) const {
    if (at <= length_ && length <= length_ - at) {
      std::memcpy(to, bytes_ + at, length);
      return true;
    }
    return at < (std::uint64_t{1} << 62) &&
           ::syscall(SYS_pread64, fd_, to, length, at) ==
               static_cast<long>(length);
  }
  // Reads the first line without its end, if there is one.
  bool Line(char* to, std::size_t size) const {
    const void* end = std::memchr(bytes_, '\n', length_);
    const std::size_t length =
        end == nullptr
            ? length_
            : static_cast<std::size_t>(static_cast<const char*>(end) - bytes_);
    if (length == 0 || length >= size) return false;
    std::memcpy(to, bytes_, length);
    to[length] = '\0';
    return true;
  }

 private:
  const int fd_;
  std::size_t length_ = 0;
  char bytes_[1024];
};

// Returns false if the file names no loader, or cannot be read.
template <class Header, class Segment>
bool FindLoader(const Head& head, char* name, std::size_t size) {
  Header header;
  if (!head.Read(0, &header, sizeof header)) return false;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Segment segment;
    if (!head.Read(header.e_phoff + std::uint64_t{i} * sizeof segment, &segment,
                   sizeof segment)) {
      return false;
    }
    if (segment.p_type != PT_INTERP) continue;
    if (segment.p_filesz < 2 || segment.p_filesz > size ||
        !head.Read(segment.p_offset, name, segment.p_filesz)) {
      return false;
    }
    name[segment.p_filesz - 1] = '\0';
    return true;
  }
  return false;
}

int Open(int folder, const char* path) {
  char self[32];
  if (*path == '\0') {
    // Not `folder` itself: it may be opened by O_PATH.
    std::snprintf(self, sizeof self, "/proc/self/fd/%d", folder);
    path = self;
  }
  // O_NONBLOCK: a FIFO would let the caller wait.
  return static_cast<int>(
      ::syscall(SYS_openat, folder, path,
                O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0));
}

// Returns the place in the file of what is mapped at `address`, or 0.
std::uint64_t PlaceOf(const Head& head, const Elf64_Ehdr& header,
                      std::uint64_t address) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr one;
    if (!head.Read(header.e_phoff + std::uint64_t{i} * sizeof one, &one,
                   sizeof one)) {
      return 0;
    }
    if (one.p_type == PT_LOAD && address >= one.p_vaddr &&
        address - one.p_vaddr < one.p_filesz) {
      return one.p_offset + (address - one.p_vaddr);
    }
  }
  return 0;
}

// Returns where the file has the versions that it defines, or 0.
std::uint64_t PlaceOfVersions(const Head& head, const Elf64_Ehdr& header) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr one;
    if (!head.Read(header.e_phoff + std::uint64_t{i} * sizeof one, &one,
                   sizeof one)) {
      return 0;
    }
    if (one.p_type != PT_DYNAMIC) continue;
    Elf64_Dyn entries[40];
    const std::size_t count = std::min<std::size_t>(
        one.p_filesz / sizeof entries[0], std::size(entries));
    if (!head.Read(one.p_offset, entries, count * sizeof entries[0])) return 0;
    for (std::size_t at = 0; at < count && entries[at].d_tag != DT_NULL; ++at) {
      if (entries[at].d_tag == DT_VERDEF) {
        return PlaceOf(head, header, entries[at].d_un.d_ptr);
      }
    }
  }
  return 0;
}

// Returns true if the file is a libc that has versions, but not the version
// that rcsock needs.
[[gnu::noinline]] bool IsTooOld(int fd) {
  const Head head(fd);
  Elf64_Ehdr header;
  if (!head.Read(0, &header, sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phnum > 64) {
    return false;
  }
  const std::uint64_t place = PlaceOfVersions(head, header);
  // At most 36 bytes for each version, and GLIBC_2.17 is the 22nd of glibc's.
  char versions[1024];
  const long length =
      place == 0 ? 0
                 : ::syscall(SYS_pread64, fd, versions, sizeof versions, place);
  for (long at = 0; at + long{sizeof(Elf64_Verdef)} <= length;) {
    Elf64_Verdef one;
    std::memcpy(&one, versions + at, sizeof one);
    if (one.vd_hash == ElfHash(kOldestVersion)) return false;
    if (one.vd_next == 0) return true;
    at += one.vd_next;
  }
  return false;
}

// Returns true if the libc that the loader would take is too old. All
// distributions have their libc beside the loader.
[[gnu::noinline]] bool HasOldLibc(const char* loader) {
  char path[kLongestPath];
  if (std::strlen(loader) >= sizeof path) return false;
  std::strcpy(path, loader);
  for (int links = 0; links < 8; ++links) {
    char target[kLongestPath];
    const long n =
        ::syscall(SYS_readlinkat, AT_FDCWD, path, target, sizeof target - 1);
    if (n <= 0) break;
    if (n == sizeof target - 1) return false;  // it may be cut off
    target[n] = '\0';
    // A relative target is beside the link.
    const std::size_t kept =
        *target == '/' ? 0 : static_cast<std::size_t>(LastPart(path) - path);
    if (kept + static_cast<std::size_t>(n) >= sizeof path) return false;
    std::strcpy(path + kept, target);
  }
  constexpr const char kLibc[] = "libc.so.6";
  const std::size_t kept = static_cast<std::size_t>(LastPart(path) - path);
  if (kept + sizeof kLibc > sizeof path) return false;
  std::strcpy(path + kept, kLibc);
  const int fd = Open(AT_FDCWD, path);
  if (fd < 0) return false;
  const bool old = IsTooOld(fd);
  ::syscall(SYS_close, fd);
  return old;
}

// Returns true if the loader `name` cannot load this library. If its libc is
// too old, says so behind the name.
bool IsOther(char* name, std::size_t size) {
  if (!IsGlibcs(name)) return true;
  if (!HasOldLibc(name)) return false;
  const std::size_t length = std::strlen(name);
  std::snprintf(name + length, size - length, " of a glibc without %s",
                kOldestVersion);
  return true;
}

// The interpreter on the first line of a script.
bool FindInterpreter(const Head& head, char* path, std::size_t size) {
  char line[256];  // as many bytes as the kernel reads
  if (!head.Line(line, sizeof line)) return false;
  const char* begin = line + 2 + std::strspn(line + 2, " \t");
  const std::size_t length = std::strcspn(begin, " \t");
  if (length == 0 || length >= size) return false;
  std::memcpy(path, begin, length);
  path[length] = '\0';
  return true;
}

bool Started(int folder, const char* path, char* name, std::size_t size) {
  char interpreter[256];
  // The kernel follows scripts this often, too.
  for (int depth = 0; depth < 5; ++depth) {
    const int fd = Open(folder, path);
    if (fd < 0) return false;
    const Head head(fd);
    // A script may be shorter than the magic.
    char magic[SELFMAG] = {};
    const bool readable = head.Read(0, magic, sizeof magic);
    bool found = false;
    bool script = false;
    if (readable && std::memcmp(magic, ELFMAG, SELFMAG) == 0) {
      char width = 0;
      found = head.Read(EI_CLASS, &width, 1) && width == ELFCLASS32
                  ? FindLoader<Elf32_Ehdr, Elf32_Phdr>(head, name, size)
                  : FindLoader<Elf64_Ehdr, Elf64_Phdr>(head, name, size);
    } else if (readable && magic[0] == '#' && magic[1] == '!') {
      script = FindInterpreter(head, interpreter, sizeof interpreter);
    }
    ::syscall(SYS_close, fd);
    if (script) {
      folder = AT_FDCWD;
      path = interpreter;
      continue;
    }
    // musl's loader, called by its name, is also started by another loader than
    // glibc's.
    if (!found && Begins(LastPart(path), "ld-musl") &&
        std::strlen(path) < size) {
      std::strcpy(name, path);
      found = true;
    }
    return found && IsOther(name, size);
  }
  return false;
}

}  // namespace

bool StartedByOther(int folder, const char* path, char* name,
                    std::size_t size) {
  const int saved = errno;
  const bool other = Started(folder, path, name, size);
  errno = saved;
  return other;
}

bool StartedByOtherInPath(const char* file, char* name, std::size_t size) {
  if (std::strchr(file, '/') != nullptr) {
    return StartedByOther(AT_FDCWD, file, name, size);
  }
  const int saved = errno;
  const char* at = Env("PATH");
  if (at == nullptr) at = "/bin:/usr/bin";
  bool other = false;
  for (bool found = false; !found;) {
    const std::size_t length = std::strcspn(at, ":");
    char path[1024];
    const int n =
        std::snprintf(path, sizeof path, "%.*s%s%s", static_cast<int>(length),
                      at, length == 0 ? "" : "/", file);
    if (n > 0 && static_cast<std::size_t>(n) < sizeof path) {
      found = ::syscall(SYS_access, path, X_OK) == 0;
      if (found) {
        // access() allows a folder too, which cannot be executed.
        const long folder = ::syscall(SYS_openat, AT_FDCWD, path,
                                      O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
        if (folder >= 0) ::syscall(SYS_close, folder);
        found = folder < 0;
      }
      if (found) other = Started(AT_FDCWD, path, name, size);
    }
    if (at[length] == '\0') break;
    at += length + 1;
  }
  errno = saved;
  return other;
}

}  // namespace rcsock::base
