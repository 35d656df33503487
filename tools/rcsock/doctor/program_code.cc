#include "tools/rcsock/doctor/program_code.h"

#include <fmt/format.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "lib/base/elf_code.h"
#include "lib/base/raw_numbers.h"
#include "tools/rcsock/printable.h"
#include "tools/rcsock/program.h"

namespace rcsock::tools {
namespace {

// Looks where distributions have the loader look.  A program may name other
// folders.  The preload sees their libraries when the program runs.
std::string PathOf(const std::string& library) {
  for (const char* folder :
       {"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib64/",
        "/usr/lib64/", "/usr/local/lib/", "/lib/", "/usr/lib/"}) {
    std::string path = folder + library;
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

// glibc's own libraries, whose calls the hooks know.
bool IsLibcs(const std::string& library) {
  for (const char* name : {"libc.so.6", "libpthread.so.0", "librt.so.1",
                           "libanl.so.1", "libresolv.so.2"}) {
    if (library == name) return true;
  }
  return library.starts_with("ld-linux");
}

// Returns the names of the calls that the file makes by itself, in order.
std::set<std::string> OwnCalls(base::ElfFile* file) {
  std::set<std::string> names;
  for (const base::CodeRange& one : file->code().segments) {
    std::vector<base::SystemCall> found;
    base::FindSystemCalls(file, one, one.begin, one.end, &found);
    for (const base::SystemCall& call : found) {
      if (base::MayUseStreams(call)) names.insert(base::NameOfCall(call));
    }
  }
  return names;
}

std::string Joined(const std::set<std::string>& names) {
  constexpr std::size_t kMost = 6;
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (count++ == kMost) return text + ", ...";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

bool ExamineProgram(const std::string& command, Findings* findings) {
  const std::string program = FindProgram(command);
  std::vector<std::string> left = {program};
  std::set<std::string> known;
  bool any = false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    base::ElfFile file;
    if (!file.Open(left[i].c_str())) {
      if (i == 0) return false;
      continue;
    }
    for (const std::string& library : file.Needed()) {
      if (IsLibcs(library) || !known.insert(library).second) continue;
      if (const std::string path = PathOf(library); !path.empty()) {
        left.push_back(path);
      }
    }
    if (base::IsKnownLibrary(left[i])) continue;
    const std::set<std::string> calls = OwnCalls(&file);
    if (calls.empty()) continue;
    any = true;
    findings->Note(Printable(command),
                   fmt::format("{} makes system calls by machine code of its "
                               "own ({}): its connections stay on TCP "
                               "(raw_calls)",
                               Printable(left[i]), Joined(calls)));
  }
  if (!any) {
    findings->Good(Printable(command),
                   "makes no system calls on connections past libc");
  }
  return true;
}

}  // namespace rcsock::tools
