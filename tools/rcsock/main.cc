// rcsock: the command-line tool.

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "lib/base/policy.h"
#include "lib/rendezvous/rdma_wire.h"
#include "lib/rendezvous/wire.h"
#include "tools/rcsock/doctor/doctor.h"
#include "tools/rcsock/doctor/probe.h"
#include "tools/rcsock/perf/command.h"
#include "tools/rcsock/run.h"
#include "tools/rcsock/stat/stat.h"
#include "tools/rcsock/version.h"

namespace {

// rcsock's version, and the versions of the protocols between two ends.  Two
// ends with different versions of the protocols stay on TCP.
std::string Version() {
  return "rcsock " RCSOCK_VERSION " (wire version: shared memory " +
         std::to_string(rcsock::rendezvous::kVersion) + ", RDMA " +
         std::to_string(rcsock::rendezvous::kRdmaVersion) + ")";
}

constexpr char kRunFooter[] = R"(
The usual form is `rcsock run [OPTIONS] -- COMMAND [ARGS...]`.  Start both ends under
rcsock, each as it is started today:

  rcsock run -- redis-server --port 7000 &
  rcsock run -- redis-benchmark -p 7000

The TCP connection stays; once it shows traffic and both ends run under rcsock,
its bytes move to a faster lane.  A peer without rcsock notices nothing.

To see what happened:

  rcsock run --stats=s.%p.json -- CMD      bytes by lane, one file per process
  rcsock run --log 1 -- CMD                promotions, demotions, and why not
  rcsock run --log-file=$PWD/log -- CMD    the same of a daemon, in a file
  rcsock stat                              the same of what runs now
  rcsock run --lanes=tcp -- CMD            the same program with every lane off

What is not given here is taken from the environment: RCSOCK_LANES,
RCSOCK_STATS, RCSOCK_LOG, RCSOCK_LOG_FILE, RCSOCK_PEERS, RCSOCK_MEET_DIR.
RCSOCK_PRELOAD names the library to preload, where it is neither beside this
program nor in ../lib.
rcsock-run(1) has the other variables and the configuration file.

The exit status is the command's; 127 if it was not found, 126 if it could not
be run, 125 where --require-lanes finds no lane, 2 for wrong options, 1 for a
missing library.
)";

// Returns what is wrong, in one line.
std::string Words(const CLI::App& app, const CLI::ParseError& error) {
  // A required word may be missing because an unknown option stands in its
  // place.
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    for (const std::string& word : app.remaining(true)) {
      if (word == "--") continue;
      return word[0] == '-' ? "there is no option " + word
                            : word + " is one word too many";
    }
  }
  return error.what();
}

// Returns what is wrong with the word of --lanes, or "".
std::string LanesWrong(std::string& word) {
  bool shm;
  bool rdma;
  if (!word.empty() && rcsock::base::ParseLanes(word.c_str(), &shm, &rdma)) {
    return "";
  }
  return word + " is none of auto, tcp, shm, rdma, and shm,rdma";
}

// Returns why no lane over shared memory opens here, or "".
std::string WhyNoSharedMemory() {
  // Rules are looked at elsewhere; the command's rules are not for the probe.
  const char* set = std::getenv("RCSOCK_RULES");
  const std::string rules = set != nullptr ? set : "";
  ::unsetenv("RCSOCK_RULES");
  const rcsock::tools::ProbeResult probe = rcsock::tools::ProbeHere("shm");
  if (set != nullptr) ::setenv("RCSOCK_RULES", rules.c_str(), 1);
  if (!probe.error.empty()) return probe.error;
  return probe.lane == "shm" ? "" : probe.reason_text;
}

void AddRun(CLI::App* app, rcsock::tools::RunOptions* options) {
  CLI::App* run =
      app->add_subcommand("run",
                          "Run a command with its TCP connections on "
                          "lanes");
  run->footer(kRunFooter);
  run->add_option("--lanes", options->lanes,
                  "auto: the best lane there is (default)\n"
                  "shm: shared memory only\n"
                  "rdma: RDMA only\n"
                  "shm,rdma: both\n"
                  "tcp: none")
      ->check(CLI::Validator(LanesWrong, ""))
      ->type_name("LANES");
  run->add_flag("--require-lanes", options->require_lanes,
                "Fail (125) instead of running over plain TCP where the\n"
                "configuration is wrong or no lane can be had");
  run->add_option("--profile", options->profile,
                  "What a short wait may cost:\n"
                  "balanced: the CPU time that lanes have saved (default)\n"
                  "latency: up to 100 us of CPU time in each wait\n"
                  "efficient: none, each wait sleeps")
      ->check(CLI::IsMember({"latency", "balanced", "efficient"}))
      ->type_name("PROFILE");
  run->add_option("--peers", options->peers,
                  "Users, with commas between, whose processes on this host\n"
                  "are as good as our own: shared memory with them, too")
      ->type_name("USERS");
  run->add_option("--meet-dir", options->meet_dir,
                  "A directory that containers of this host share: shared\n"
                  "memory between their network namespaces, too")
      ->type_name("DIR");
  run->add_option("--config", options->config,
                  "A configuration file (see rcsock-run(1)), instead of\n"
                  "~/.config/rcsock.conf and /etc/rcsock.conf")
      ->type_name("FILE")
      ->excludes(run->add_flag("--no-config", options->no_config,
                               "No configuration file at all"));
  run->add_option("--stats", options->stats,
                  "Each process writes its counters here (JSON) when it\n"
                  "exits or SIGHUP, SIGINT or SIGTERM ends it; %p stands\n"
                  "for its pid, %h for the name of its host or container")
      ->type_name("FILE");
  run->add_option("--log", options->log,
                  "On stderr, 1: promotions, demotions, failures, and why\n"
                  "there is no lane; 2: every step")
      ->check(CLI::Range(0, 2))
      ->type_name("N");
  run->add_option("--log-file", options->log_file,
                  "The same at the end of this file (--log 1, unless given);\n"
                  "%p stands for the pid of each process, %h for the name\n"
                  "of its host or container")
      ->type_name("FILE");
  run->add_option("command", options->command, "The command and its arguments")
      ->required()
      ->type_name("");
  // Options after the command are the command's, with or without `--`.
  run->positionals_at_end();
}

// Says what is wrong with the words of a call, or prints the help that they ask
// for.  Returns the exit status.
int EndUnparsed(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    if (std::cout.flush()) return 0;
    std::cerr << "rcsock: cannot write: " << std::strerror(errno) << "\n";
    return 1;
  }
  const auto used = app.get_subcommands();
  std::cerr << "rcsock: " << Words(app, error) << " (see `rcsock "
            << (used.empty() ? "" : used.front()->get_name() + " ")
            << "--help`)\n";
  return 2;
}

int Main(int argc, char** argv) {
  // `rcsock doctor` starts this command.
  if (argc > 1 && std::string(argv[1]) == "doctor-probe") {
    return rcsock::tools::ProbeMain(argc - 1, argv + 1);
  }
  CLI::App app{"rcsock: TCP programs, unmodified, over faster lanes", "rcsock"};
  app.set_version_flag("--version", Version());
  app.require_subcommand(1);
  app.footer("\n`rcsock run --help` has examples.");

  rcsock::tools::RunOptions options;
  AddRun(&app, &options);

  rcsock::tools::StatOptions stat_options;
  const CLI::App* stat = rcsock::tools::AddStat(&app, &stat_options);

  rcsock::tools::DoctorOptions doctor_options;
  const CLI::App* doctor = rcsock::tools::AddDoctor(&app, &doctor_options);

  rcsock::perf::Command perf(&app);

  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands(
             [&](CLI::App* one) { return one->get_name() == argv[1]; })
          .empty()) {
    std::cerr << "rcsock: " << argv[1]
              << " is none of its commands (see `rcsock --help`)\n";
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return EndUnparsed(app, error);
  }
  int status = 0;
  if (perf.Run(&status)) return status;
  if (stat->parsed()) return rcsock::tools::Stat(stat_options);
  if (doctor->parsed()) return rcsock::tools::Doctor(doctor_options);
  return rcsock::tools::Run(options, WhyNoSharedMemory);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "rcsock: " << error.what() << "\n";
    return 1;
  }
}
