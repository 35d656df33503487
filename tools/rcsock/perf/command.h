#ifndef RCSOCK_TOOLS_RCSOCK_PERF_COMMAND_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_COMMAND_H_

#include <CLI/CLI.hpp>
#include <memory>

namespace rcsock::perf {

struct Options;

// The subcommands `perf` and, hidden, `perf-worker`.
class Command {
 public:
  explicit Command(CLI::App* app);
  ~Command();

  // Returns true if one of them was given.  Then *status is the exit status.
  bool Run(int* status);

 private:
  CLI::App* perf_;
  CLI::App* worker_;
  std::unique_ptr<Options> options_;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_COMMAND_H_
