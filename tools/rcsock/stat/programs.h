#ifndef RCSOCK_TOOLS_RCSOCK_STAT_PROGRAMS_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_PROGRAMS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lib/posix/socket/snapshot.h"
#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

// All processes of one name.
struct ProgramPicture {
  ProcessPicture sum;  // its pid is 0
  std::uint64_t answering = 0;
  std::uint64_t silent = 0;
};

using ProgramPictures = std::map<std::string, ProgramPicture>;

// Sums of the processes of each program, for a collector that must not see a
// new label for each process.  Counters never fall: what an ended process has
// counted until it was last looked at stays in its program's sum.  One thread
// may call it.
class Programs {
 public:
  // The most names.  A user may give processes any name.
  static constexpr std::size_t kMost = 200;
  static constexpr const char* kRest = "(other)";

  // Adds what a look has seen.  Returns the sums.
  ProgramPictures Add(const Picture& look);

 private:
  struct Process {
    std::string program;
    posix::SnapshotHead last{};
    bool seen = false;
  };

  std::string NameFor(const std::string& program);
  void ForgetEnded();

  std::map<std::pair<pid_t, std::uint64_t>, Process> processes_;  // with start
  std::map<std::string, posix::SnapshotHead> ended_;  // each name ever seen
};

std::string AsPrometheus(const ProgramPictures& programs, const Picture& look);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_PROGRAMS_H_
