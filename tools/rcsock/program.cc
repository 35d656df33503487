#include "tools/rcsock/program.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "lib/base/other_loader.h"

namespace rcsock::tools {
namespace {

bool Runnable(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// True if the kernel starts `path` with rights other than ours.  The loader
// then takes no path from the environment.
bool GainsRights(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return false;
  if ((info.st_mode & S_ISUID) != 0 && info.st_uid != ::getuid()) return true;
  if ((info.st_mode & S_ISGID) != 0 && (info.st_mode & S_IXGRP) != 0 &&
      info.st_gid != ::getgid()) {
    return true;
  }
  return ::getuid() != 0 &&
         ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

// Returns the interpreter on a script's first line, or "".
std::string Interpreter(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || line.rfind("#!", 0) != 0) return "";
  std::istringstream words(line.substr(2));
  std::string interpreter;
  words >> interpreter;
  return interpreter;
}

// What a program's file says of itself.
struct Elf {
  bool is = false;       // an ELF file at all
  bool ours = false;     // of this architecture
  bool dynamic = false;  // a loader starts it
  bool go = false;
};

// Returns true if the notes hold the one by which Go's linker marks a program.
bool HasGoNote(const std::string& notes) {
  constexpr std::uint32_t kBuildId = 4;
  constexpr char kOwner[] = {'G', 'o', '\0', '\0'};
  const auto padded = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
  std::uint64_t at = 0;
  Elf64_Nhdr note;
  while (at + sizeof note + sizeof kOwner <= notes.size()) {
    std::memcpy(&note, notes.data() + at, sizeof note);
    at += sizeof note;
    if (note.n_type == kBuildId && note.n_namesz == sizeof kOwner &&
        std::memcmp(notes.data() + at, kOwner, sizeof kOwner) == 0) {
      return true;
    }
    at += padded(note.n_namesz) + padded(note.n_descsz);
  }
  return false;
}

// Reads what the notes of a segment say.  Anybody may have written the file.
bool HasGoNote(std::ifstream* file, const Elf64_Phdr& segment) {
  constexpr std::uint64_t kMostBytes = 64 * 1024;
  std::string notes(std::min<std::uint64_t>(segment.p_filesz, kMostBytes),
                    '\0');
  file->seekg(static_cast<std::streamoff>(segment.p_offset));
  file->read(notes.data(), static_cast<std::streamsize>(notes.size()));
  notes.resize(static_cast<std::size_t>(file->gcount()));
  file->clear();
  return HasGoNote(notes);
}

Elf ReadElf(const std::string& path) {
  Elf elf;
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return elf;
  }
  elf.is = true;
  elf.ours =
      header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == EM_X86_64;
  constexpr unsigned kMostSegments = 256;
  for (unsigned i = 0; elf.ours && i < header.e_phnum && i < kMostSegments;
       ++i) {
    Elf64_Phdr segment;
    file.seekg(static_cast<std::streamoff>(header.e_phoff) +
               static_cast<std::streamoff>(i) * header.e_phentsize);
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) break;
    elf.dynamic = elf.dynamic || segment.p_type == PT_INTERP;
    if (segment.p_type == PT_NOTE) {
      elf.go = elf.go || HasGoNote(&file, segment);
    }
  }
  return elf;
}

std::string WhyNotElf(const std::string& path) {
  const Elf elf = ReadElf(path);
  if (!elf.is) return "";
  if (!elf.ours) {
    return "is built for another architecture: the loader ignores the preload";
  }
  if (!elf.dynamic)
    return "is statically linked: the loader ignores the preload";
  return elf.go ? "is a Go program: its calls do not pass libc" : "";
}

}  // namespace

std::string FindProgram(const std::string& command) {
  if (command.find('/') != std::string::npos) {
    return Runnable(command) ? command : "";
  }
  const char* path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/bin:/usr/bin");
  std::string directory;
  while (std::getline(directories, directory, ':')) {
    const std::string file =
        (directory.empty() ? "." : directory) + "/" + command;
    if (Runnable(file)) return file;
  }
  return "";
}

bool IsGo(const std::string& path) { return ReadElf(path).go; }

std::string WhyNotPreloadable(const std::string& path) {
  // The kernel ignores set-uid on scripts and gives their interpreter its own.
  const std::string interpreter = Interpreter(path);
  const std::string& program = interpreter.empty() ? path : interpreter;
  const std::string prefix =
      interpreter.empty() ? "" : "its interpreter " + interpreter + " ";
  if (GainsRights(program)) {
    return prefix +
           "is set-uid, set-gid or has file capabilities: the loader ignores "
           "the preload";
  }
  const std::string why = WhyNotElf(program);
  return why.empty() ? "" : prefix + why;
}

std::string OtherLoader(const std::string& path) {
  char name[PATH_MAX];
  return base::StartedByOther(AT_FDCWD, path.c_str(), name, sizeof name) ? name
                                                                         : "";
}

}  // namespace rcsock::tools
