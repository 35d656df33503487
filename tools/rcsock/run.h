#ifndef RCSOCK_TOOLS_RCSOCK_RUN_H_
#define RCSOCK_TOOLS_RCSOCK_RUN_H_

#include <optional>
#include <string>
#include <vector>

#include "tools/rcsock/config/config.h"

namespace rcsock::tools {

struct RunOptions {
  // What is not set stays as the environment has it.
  std::optional<std::string> lanes;
  std::optional<std::string> stats;
  std::optional<std::string> peers;  // users, with commas between
  std::optional<int> log;
  std::optional<std::string> log_file;
  std::optional<std::string> config;  // a file, instead of the usual ones
  bool no_config = false;
  std::vector<std::string> command;
};

// The absolute path of the preload, or "" after telling on stderr why there is
// none.
std::string OwnFile();

std::string FindLibrary();

// LD_PRELOAD for a process that is to run with `library` ("": without any of
// ours): `list` with it in front, unless it is there already, and without
// others of ours.
std::string PreloadList(const std::string& library, const std::string& list);

// Sets this process's environment as the configuration files say, for a program
// that is to run in it; from `file`, or from the usual ones.  What is wrong
// with them is in `error`, and then it is to run over plain TCP.
Policy ApplyConfig(const std::optional<std::string>& file);

// Turns this process into the command, with the preload.  Returns only if that
// failed, with the exit status for it, after one line on stderr.
int Run(const RunOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_RUN_H_
