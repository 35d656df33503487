#ifndef RCSOCK_TOOLS_RCSOCK_RUN_H_
#define RCSOCK_TOOLS_RCSOCK_RUN_H_

#include <optional>
#include <string>
#include <vector>

#include "tools/rcsock/config/config.h"
#include "tools/rcsock/require.h"

namespace rcsock::tools {

struct RunOptions {
  // An option that is not set stays as the environment has it.
  std::optional<std::string> lanes;
  std::optional<std::string> profile;
  std::optional<std::string> stats;
  std::optional<std::string> peers;     // users, separated by commas
  std::optional<std::string> meet_dir;  // shared with other containers
  std::optional<int> log;
  std::optional<std::string> log_file;
  std::optional<std::string> config;  // a file, instead of the usual ones
  bool no_config = false;
  // If no lane can be had, fails, instead of running over plain TCP.
  bool require_lanes = false;
  std::vector<std::string> command;
};

// Returns the absolute path of the preload.  If there is none, says why on
// stderr and returns "".
std::string OwnFile();

std::string FindLibrary();

// Returns the LD_PRELOAD of a process that is to run with `library`, or without
// any preload of rcsock if `library` is "".  Puts `library` before `list`
// unless it is there already, and drops other preloads of rcsock.
std::string PreloadList(const std::string& library, const std::string& list);

// Sets this process's environment as the configuration files say, for a program
// that is to run in it.  Reads `file`, or the usual files.  `error` tells what
// is wrong with them.  The program is then to run over plain TCP.
Policy ApplyConfig(const std::optional<std::string>& file);

// Turns this process into the command, with the preload.  Returns only if that
// has failed: writes a line to stderr and returns the exit status.
// `why_no_shm` tries shared memory, where a lane is required.
int Run(const RunOptions& options, const Trial& why_no_shm);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_RUN_H_
