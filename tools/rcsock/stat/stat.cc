#include "tools/rcsock/stat/stat.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>

#include "tools/rcsock/stat/picture.h"
#include "tools/rcsock/stat/programs.h"
#include "tools/rcsock/stat/serve.h"

namespace rcsock::tools {
namespace {

constexpr int kSilentStatus = 3;

constexpr char kFooter[] = R"(
As ss(8), for connections under rcsock: of this user, or of all for root, in this
network namespace.  Processes are not slowed down; each answers within --timeout,
or its lines show what the kernel knows.

  rcsock stat                    every connection, its lane, or why it is on TCP
  rcsock stat --watch            again each second, with rates
  rcsock stat --over 5           once, with rates over five seconds
  rcsock stat --json | jq ...    for scripts; every number is exact
  rcsock stat --prometheus       for the textfile collector of node exporter
  rcsock stat --serve 9419       for Prometheus itself, at 127.0.0.1:9419/metrics

LANE    tcp, shm (shared memory) or rdma
STATE   tcp, seeking its peer, switching, on_lane
RING    bytes of the lane's rings; FILL: in them, and not yet read
CREDIT  messages that may be sent before the peer answers, of how many
P/D/F   promotions, demotions, failovers

Exit status: 0, also if nothing runs under rcsock; 1 if none of --pid or --program
does, or is not this user's; 1 if --serve cannot listen; 2 for wrong options; 3 if a
process did not answer.
)";

bool Terminal() { return ::isatty(STDOUT_FILENO) == 1; }

bool Colour() {
  const char* no = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return Terminal() && (no == nullptr || *no == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

void Sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::string Render(const Picture& picture, const StatOptions& options) {
  if (options.json) return AsJson(picture, !options.watch);
  if (options.prometheus) return AsPrometheus(picture);
  return AsText(picture, Colour());
}

int Status(const Picture& picture) {
  return std::any_of(picture.processes.begin(), picture.processes.end(),
                     [](const ProcessPicture& process) {
                       return process.source == Source::kSilent;
                     })
             ? kSilentStatus
             : 0;
}

void AddServe(CLI::App* stat, StatOptions* options) {
  stat->add_option("--serve", options->serve,
                   "Serve totals of each program to Prometheus, by HTTP at\n"
                   "[HOST:]PORT/metrics (HOST: 127.0.0.1)")
      ->type_name("ADDRESS")
      ->excludes("--json")
      ->excludes("--prometheus");
}

// Serves the sums of programs.
int ServePrograms(const StatOptions& options) {
  Programs programs;
  return Serve(*options.serve, [&] {
    const Picture look =
        Collect({options.pid, options.program, options.timeout_ms});
    return AsPrometheus(programs.Add(look), look);
  });
}

}  // namespace

CLI::App* AddStat(CLI::App* app, StatOptions* options) {
  CLI::App* stat = app->add_subcommand(
      "stat", "Show connections, their lanes, and why some are on TCP");
  stat->footer(kFooter);
  auto* json = stat->add_flag("--json", options->json,
                              "One JSON object (a line for each with --watch)");
  stat->add_flag("--prometheus", options->prometheus,
                 "Totals in Prometheus' text format")
      ->excludes(json);
  AddServe(stat, options);
  auto* watch = stat->add_option("--watch", options->watch,
                                 "Again every SECONDS (1), until interrupted")
                    ->check(CLI::Range(0.1, 86400.0))
                    ->expected(0, 1)
                    ->default_str("1")
                    ->type_name("SECONDS");
  stat->add_option("--over", options->over,
                   "Look twice, this many seconds apart, for the rates")
      ->check(CLI::Range(0.01, 86400.0))
      ->type_name("SECONDS")
      ->excludes(watch)
      ->excludes("--serve");
  watch->excludes("--serve");
  stat->add_option("--pid", options->pid, "This process alone")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("PID");
  stat->add_option("--program", options->program,
                   "The processes of this program: its file's name or that\n"
                   "in ps(1); * and ? as in the shell")
      ->type_name("NAME");
  stat->add_option("--timeout", options->timeout_ms,
                   "How long to wait for each answer (500)")
      ->check(CLI::Range(1, 60000))
      ->type_name("MS");
  return stat;
}

int Stat(const StatOptions& options) {
  if (options.serve) return ServePrograms(options);
  const CollectOptions collect{options.pid, options.program,
                               options.timeout_ms};
  Picture picture = Collect(collect);
  if (options.pid != 0 && picture.processes.empty()) {
    std::cerr << "rcsock: process " << options.pid
              << " does not run under rcsock, or is not this user's\n";
    return 1;
  }
  if (!options.program.empty() && picture.processes.empty()) {
    std::cerr << "rcsock: no process of " << options.program
              << " runs under rcsock, or none that is this user's\n";
    return 1;
  }
  if (options.over) {
    Sleep(*options.over);
    Picture again = Collect(collect);
    AddRates(picture, &again);
    picture = std::move(again);
  }
  for (;;) {
    // One write moves the cursor home, clears the screen and shows the picture,
    // so nothing flickers.
    if (options.watch && Terminal() && !options.json) {
      std::cout << "\033[H\033[2J";
    }
    std::cout << Render(picture, options) << std::flush;
    if (!std::cout) {
      std::cerr << "rcsock: cannot write: " << std::strerror(errno) << "\n";
      return 1;
    }
    if (!options.watch) return Status(picture);
    if (!Terminal() && !options.json) std::cout << "\n";
    Sleep(*options.watch);
    Picture again = Collect(collect);
    AddRates(picture, &again);
    picture = std::move(again);
  }
}

}  // namespace rcsock::tools
