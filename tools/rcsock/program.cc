#include "tools/rcsock/program.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <climits>
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

std::string WhyNotElf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "";
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64) {
    return "is built for another architecture";
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    file.seekg(static_cast<std::streamoff>(header.e_phoff) +
               static_cast<std::streamoff>(i) * header.e_phentsize);
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) break;
    if (segment.p_type == PT_INTERP) return "";
  }
  return "is statically linked";
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

std::string WhyNotPreloadable(const std::string& path) {
  // The kernel ignores set-uid on scripts and gives their interpreter its own.
  const std::string interpreter = Interpreter(path);
  const std::string& program = interpreter.empty() ? path : interpreter;
  const std::string prefix =
      interpreter.empty() ? "" : "its interpreter " + interpreter + " ";
  if (GainsRights(program)) {
    return prefix + "is set-uid, set-gid or has file capabilities";
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
