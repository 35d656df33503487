// usage: count_syscalls FILE COMMAND [ARG...]
//
// Runs the command and writes to FILE, as JSON, how many system calls of each
// kind all of its threads made between its first and its last bench::Mark(),
// which the programs of this directory call around what they measure.  Made for
// where strace is not to be had, such as a guest.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tools/rcsock/perf/trace.h"

namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(125);
}

void Write(const char* path, const rcsock::perf::SyscallCounts& counts) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) Die(path);
  std::fprintf(file, "{\"marks\":%d,\"total\":%ld,\"calls\":{", counts.marks,
               counts.total);
  const char* comma = "";
  for (const auto& [name, n] : counts.calls) {
    std::fprintf(file, "%s\"%s\":%ld", comma, name.c_str(), n);
    comma = ",";
  }
  std::fputs("}}\n", file);
  if (std::fclose(file) != 0) Die(path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: count_syscalls FILE COMMAND [ARG...]\n", stderr);
    return 125;
  }
  rcsock::perf::SyscallCounts counts;
  std::string error;
  const int status = rcsock::perf::CountSyscalls(
      [argv] {
        ::execvp(argv[2], argv + 2);
        Die(argv[2]);
      },
      &counts, &error);
  if (!error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return status;
  }
  Write(argv[1], counts);
  return status;
}
