#ifndef RCSOCK_TOOLS_RCSOCK_STAT_STAT_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_STAT_H_

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace rcsock::tools {

struct StatOptions {
  bool json = false;
  bool prometheus = false;
  std::optional<std::string> serve;  // [HOST:]PORT
  std::optional<double> watch;       // seconds between pictures
  std::optional<double> over;        // seconds over which rates are taken
  int pid = 0;
  std::string program;  // a glob; "": any
  int timeout_ms = 500;
};

// Adds the subcommand and its options.
CLI::App* AddStat(CLI::App* app, StatOptions* options);
// Returns the exit status.
int Stat(const StatOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_STAT_H_
