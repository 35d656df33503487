#include "tools/rcsock/perf/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lib/base/bytes.h"
#include "tools/rcsock/perf/client.h"
#include "tools/rcsock/perf/compare.h"
#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/print.h"
#include "tools/rcsock/perf/report.h"
#include "tools/rcsock/perf/server.h"
#include "tools/rcsock/perf/worker.h"

namespace rcsock::perf {
namespace {

constexpr char kFooter[] = R"(
Start a server at one end, then measure from the other:

  rcsock perf -s
  rcsock perf -c HOST                        a stream for ten seconds, over the best lane
  rcsock perf -c HOST --latency              round trips, with percentiles
  rcsock perf -c HOST --latency --rate 10000 the latency at that load
  rcsock perf -c HOST --short                connections made and ended, per second
  rcsock perf -c HOST --connections 10000 --active 64
                                             round trips over very many connections
  rcsock perf -c HOST --compare              tcp, shm, rdma and verbs in turn
  rcsock perf -c HOST --report out.html      all of that, as one page with plots

The measuring processes are started under rcsock by themselves (for `tcp` and
`verbs` without it): do not use `rcsock run`.  Nothing but the server's port has
to be free; data connections use ports that the kernel chooses.

What counts as "on the lane" is what the kernel's TCP has not carried, by the
kernel's own count.  Exit status: 0; 1 if it failed; 2 for wrong options; 3 if it
ran, but less than 95% of the bytes were on the lane that --transport names; 130
after Ctrl-C (0 for a server; with -1 it is 1 if its client failed).
)";

// "64K" is 65,536.
std::uint64_t ParseSize(const std::string& text) {
  std::uint64_t bytes = 0;
  if (base::ParseBytes(text.c_str(), &bytes)) return bytes;
  throw CLI::ValidationError(text + " is not a size (64, 4K, 1M, 2G)");
}

// A size between its bounds.
CLI::Validator SizeWithin(std::uint64_t low, std::uint64_t high) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        try {
          const std::uint64_t value = ParseSize(text);
          if (value >= low && value <= high) {
            text = std::to_string(value);
            return "";
          }
        } catch (const CLI::ValidationError& error) {
          return error.what();
        }
        return fmt::format("{} is not from {} to {}", text, low, high);
      },
      "SIZE");
}

constexpr int kRounds = 3;

}  // namespace

struct Options {
  bool server = false;
  std::string host;
  std::string bind;
  std::uint16_t port = kDefaultPort;
  bool once = false;
  std::optional<double> seconds;
  std::uint64_t bytes = 0;
  std::uint64_t parallel = 1;
  std::optional<std::uint64_t> size;
  std::optional<double> interval;
  std::optional<double> settle;
  bool reverse = false;
  bool both = false;
  bool latency = false;
  bool brief = false;
  std::uint64_t connections = 0;
  std::optional<std::uint64_t> active;
  double rate = 0;
  std::vector<std::string> transports;
  bool compare = false;
  int rounds = kRounds;
  std::string report;
  bool syscalls = false;
  std::string affinity;
  std::string memory = "host";
  bool json = false;
};

namespace {

[[noreturn]] void Wrong(const std::string& line) {
  throw Error(line + " (see `rcsock perf --help`)", kUsage);
}

// Parses "host", "gpu" or "gpu:1": the GPU, or -1.
int GpuOf(const std::string& text) {
  if (text == "host") return -1;
  if (text == "gpu") return 0;
  int gpu = -1;
  const std::string_view number = std::string_view(text).substr(
      std::min<std::size_t>(text.size(), sizeof "gpu:" - 1));
  const auto parsed =
      std::from_chars(number.data(), number.data() + number.size(), gpu);
  if (text.rfind("gpu:", 0) != 0 || parsed.ec != std::errc() ||
      parsed.ptr != number.data() + number.size() || gpu < 0 || gpu > kMaxGpu) {
    Wrong("--memory " + text + ": host, gpu or gpu:N");
  }
  return gpu;
}

Mode ModeOf(const Options& options) {
  if (options.brief) return Mode::kShort;
  if (options.latency || options.connections > 0) return Mode::kMessages;
  return Mode::kStream;
}

// Throws for options that contradict each other.
void Check(const Options& options) {
  const Mode mode = ModeOf(options);
  if (options.server == !options.host.empty()) {
    Wrong("either -s or -c HOST");
  }
  if (options.server &&
      (mode != Mode::kStream || options.seconds || options.bytes > 0 ||
       options.parallel > 1 || options.size || options.interval ||
       options.settle || options.rate > 0 || options.reverse || options.both ||
       options.active || !options.transports.empty() || options.compare ||
       !options.report.empty() || options.syscalls ||
       options.memory != "host")) {
    Wrong("-s takes -p, -B, -1, -A and -J: the client says what is measured");
  }
  if (!options.server && (!options.bind.empty() || options.once)) {
    Wrong("-B and -1 are the server's");
  }
  if (options.latency + options.brief + (options.connections > 0) > 1) {
    Wrong("only one of --latency, --short and --connections");
  }
  if (options.reverse && options.both) Wrong("only one of -R and --bidir");
  if (mode != Mode::kStream &&
      (options.reverse || options.both || options.bytes > 0)) {
    Wrong("-R, --bidir and -n are for streams");
  }
  if (options.rounds != kRounds && !options.compare && options.report.empty()) {
    Wrong("--rounds needs --compare or --report");
  }
  if (options.bytes > 0 && options.seconds) Wrong("only one of -t and -n");
  if (options.active && options.connections == 0) {
    Wrong("--active needs --connections");
  }
  if (options.rate > 0 && (mode != Mode::kMessages || options.active)) {
    Wrong("--rate needs --latency or --connections, and no --active");
  }
  if (options.active && *options.active > options.connections) {
    Wrong("--active can't be more than --connections");
  }
  if (options.connections > 0 && options.parallel > 1) {
    Wrong("only one of -P and --connections");
  }
  if (GpuOf(options.memory) >= 0 &&
      (mode != Mode::kStream || !options.report.empty())) {
    Wrong("--memory gpu is for streams");
  }
  if (!options.compare && options.report.empty() &&
      options.transports.size() > 1) {
    Wrong("several transports need --compare or --report");
  }
  if (!options.report.empty() &&
      (mode != Mode::kStream || options.compare || options.bytes > 0 ||
       options.syscalls || options.interval)) {
    Wrong("--report chooses itself what to measure");
  }
}

// Parses "1" or "1,3": the CPU of this process, and of the server's.
void TakeAffinity(const std::string& text, int* own, int* server) {
  const auto number = [&](std::string_view part) {
    int cpu = -1;
    const auto parsed =
        std::from_chars(part.data(), part.data() + part.size(), cpu);
    if (parsed.ec != std::errc() || parsed.ptr != part.data() + part.size() ||
        cpu < 0 || cpu > kMaxCpu) {
      Wrong("--affinity " + text + ": a CPU from 0, or two as 0,1");
    }
    return cpu;
  };
  const std::size_t comma = text.find(',');
  *own = number(std::string_view(text).substr(0, comma));
  if (comma != std::string::npos) {
    *server = number(std::string_view(text).substr(comma + 1));
  }
}

Spec SpecOf(const Options& options) {
  Spec spec;
  spec.mode = ModeOf(options);
  spec.direction = options.both      ? Direction::kBoth
                   : options.reverse ? Direction::kReverse
                                     : Direction::kForward;
  spec.seconds = options.seconds.value_or(!options.report.empty() ? 0.5
                                          : options.compare       ? 2
                                                                  : 10);
  spec.bytes = options.bytes;
  spec.size =
      options.size.value_or(spec.mode == Mode::kStream ? 128 << 10 : 64);
  spec.connections =
      options.connections > 0 ? options.connections : options.parallel;
  spec.rate = options.rate;
  // At a rate, there is no number of round trips under way.
  spec.active = options.connections == 0 || options.rate > 0
                    ? std::min(spec.connections, kMaxActive)
                    : options.active.value_or(
                          std::min<std::uint64_t>(options.connections, 64));
  // Lanes are made one after the other.
  spec.settle = options.settle.value_or(
      std::min(kMaxSettle, 3 + 0.002 * static_cast<double>(spec.connections)));
  spec.gpu = GpuOf(options.memory);
  if (!options.affinity.empty()) {
    TakeAffinity(options.affinity, &spec.client_cpu, &spec.server_cpu);
  }
  return spec;
}

std::vector<Transport> TransportsOf(const Options& options) {
  std::vector<Transport> transports;
  for (const std::string& name : options.transports) {
    Transport transport;
    if (!FromName(name, &transport)) Wrong(name + " is not a transport");
    transports.push_back(transport);
  }
  if (!transports.empty()) return transports;
  if (options.compare && GpuOf(options.memory) >= 0) {
    return {Transport::kTcp, Transport::kShm, Transport::kRdma};
  }
  if (!options.compare && options.report.empty()) return {Transport::kAuto};
  return {Transport::kTcp, Transport::kShm, Transport::kRdma,
          Transport::kVerbs};
}

// Counts system calls in a short run of its own: tracing slows everything down.
// Returns why they could not be counted.  The figures stand nevertheless.
std::string CountCalls(Client* client, Outcome* outcome) try {
  Spec spec = outcome->spec;
  spec.traced = true;
  spec.seconds = std::min(spec.seconds, 1.0);
  spec.bytes = 0;
  const Outcome counted = client->Run(spec, 0, nullptr);
  const auto scale = [&](const Calls& calls) {
    Calls scaled = calls;
    for (auto& [name, n] : scaled) {
      n = static_cast<std::uint64_t>(
          static_cast<double>(n) * static_cast<double>(outcome->Messages()) /
          static_cast<double>(std::max<std::uint64_t>(1, counted.Messages())));
    }
    return scaled;
  };
  outcome->client_calls = scale(*counted.client_calls);
  outcome->server_calls = scale(*counted.server_calls);
  return "";
} catch (const Error& error) {
  if (error.status == kInterrupted) throw;
  return error.what();
}

void PrintUncounted(const std::string& why) {
  if (!why.empty()) fmt::print("{:<14} not counted: {}\n", "system calls", why);
}

int RunOnce(const Options& options) {
  Spec spec = SpecOf(options);
  spec.transport = TransportsOf(options).front();
  const std::string why_not = spec.WhyNot();
  if (!why_not.empty()) Wrong(why_not);
  Client client(options.host, options.port);
  const bool lines = !options.json &&
                     (options.interval || ::isatty(STDOUT_FILENO) == 1) &&
                     options.interval.value_or(1) > 0;
  if (!options.json) PrintHeader(options.host, options.port, spec);
  Outcome outcome = client.Run(spec, options.interval.value_or(1),
                               [&](const Interval& interval) {
                                 if (lines) PrintInterval(spec, interval);
                               });
  std::string uncounted;
  if (options.syscalls) uncounted = CountCalls(&client, &outcome);
  if (options.json) {
    nlohmann::json json = ToJson(outcome);
    if (!uncounted.empty()) json["syscalls_failed"] = uncounted;
    fmt::print("{}\n", json.dump(2));
  } else {
    PrintOutcome(outcome);
    PrintUncounted(uncounted);
  }
  std::fflush(stdout);
  if (outcome.LaneUsed()) return 0;
  if (!outcome.ShareKnown()) {
    throw Error(fmt::format("not known how much was on the {} lane: no "
                            "statistics",
                            Name(spec.transport)),
                kNotOnLane);
  }
  throw Error(fmt::format("only {} of the bytes were on the {} lane",
                          Percent(outcome.Share()), Name(spec.transport)),
              kNotOnLane);
}

// Returns true if a transport that the user has named has failed.
bool AnyNamedFailed(const Options& options, const std::vector<Row>& rows) {
  return !options.transports.empty() &&
         std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return !row.good(); });
}

int RunCompare(const Options& options) {
  const Spec spec = SpecOf(options);
  Rounds rounds(options.host, options.port, TransportsOf(options));
  // On a terminal, too, lines come only on request: there are many runs.
  rounds.Watch(options.interval.value_or(0), !options.json);
  std::vector<Row> rows = Compare(&rounds, spec, options.rounds);
  std::string uncounted;
  for (Row& row : rows) {
    if (!options.syscalls || !row.good()) continue;
    for (Outcome& run : row.runs) {
      if (uncounted.empty()) uncounted = CountCalls(rounds.client(), &run);
    }
  }
  if (options.json) {
    nlohmann::json json = {{"spec", ToJson(spec)}, {"compare", ToJson(rows)}};
    if (!uncounted.empty()) json["syscalls_failed"] = uncounted;
    fmt::print("{}\n", json.dump(2));
    std::fflush(stdout);
  } else {
    PrintComparison(spec, rows);
    PrintUncounted(uncounted);
  }
  return AnyNamedFailed(options, rows) ? kNotOnLane : 0;
}

// Writes a file as a whole.  Unless Commit is called, the old content stays.
class NewFile {
 public:
  // Throws at once if the file cannot be written.
  explicit NewFile(const std::string& path) : path_(path), to_(path) {
    std::error_code error;
    const auto is = std::filesystem::status(path, error);
    if (std::filesystem::is_regular_file(is)) {
      // The target of a link, not the link.
      to_ = std::filesystem::canonical(path, error).string();
      if (::access(to_.c_str(), W_OK) != 0) FailErrno("cannot write {}", path);
    }
    // A pipe or a device has no old content to keep.
    if (!std::filesystem::exists(is) || std::filesystem::is_regular_file(is)) {
      temporary_ = to_ + ".new";
    }
    file_.open(temporary_.empty() ? to_ : temporary_);
    if (!file_) FailErrno("cannot write {}", path);
  }
  ~NewFile() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void Commit(const std::string& content) {
    file_ << content;
    file_.close();
    if (!file_) FailErrno("cannot write {}", path_);
    if (temporary_.empty()) return;
    if (std::rename(temporary_.c_str(), to_.c_str()) != 0) {
      FailErrno("cannot write {}", path_);
    }
    temporary_.clear();
  }

 private:
  const std::string path_;
  std::string to_;
  std::string temporary_;  // "": written in place
  std::ofstream file_;
};

int RunReport(const Options& options) {
  // Before the minutes of measuring, not after them.
  NewFile file(options.report);
  Rounds rounds(options.host, options.port, TransportsOf(options));
  const Report report =
      Measure(&rounds, SpecOf(options), options.host, options.rounds);
  file.Commit(Page(report));
  if (options.json) {
    fmt::print("{}\n", ToJson(report).dump(2));
  } else {
    PrintReport(report);
    fmt::print("{}: written\n", options.report);
  }
  std::fflush(stdout);
  bool failed = AnyNamedFailed(options, report.latency);
  for (const auto* points :
       {&report.sizes, &report.connections, &report.rates}) {
    for (const Point& point : *points) {
      failed = failed || AnyNamedFailed(options, point.rows);
    }
  }
  return failed ? kNotOnLane : 0;
}

int Run(const Options& options) {
  Check(options);
  if (options.server) {
    int cpu = -1;
    int other = -1;
    if (!options.affinity.empty()) TakeAffinity(options.affinity, &cpu, &other);
    if (other >= 0) Wrong("-s has one CPU");
    return Serve({options.bind, options.port, options.once, options.json, cpu});
  }
  if (!options.report.empty()) return RunReport(options);
  return options.compare ? RunCompare(options) : RunOnce(options);
}

// Options stand in the help as they are added here.

// Adds the options that name the two ends of the measurement.
void AddEnds(CLI::App* perf, Options* options) {
  perf->add_flag("-s,--server", options->server,
                 "Serve clients, one at a time");
  perf->add_option("-c,--client", options->host,
                   "Measure with the server at HOST")
      ->type_name("HOST");
  perf->add_option("-p,--port", options->port, "The server's port")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str()
      ->type_name("N");
  perf->add_option("-B,--bind", options->bind, "Serve at this address only")
      ->type_name("ADDRESS");
  perf->add_flag("-1,--once", options->once, "Serve one client, then end");
}

// How much is sent, and which way.
void AddAmount(CLI::App* perf, Options* options) {
  perf->add_option("-t,--time", options->seconds,
                   "Seconds to measure (10; --compare: 2 for each run,\n"
                   "--report: 0.5)")
      ->check(CLI::Range(kMinSeconds, kMaxSeconds))
      ->type_name("SEC");
  perf->add_option("-n,--bytes", options->bytes,
                   "Bytes to send, instead of -t (K, M, G)")
      ->transform(SizeWithin(1, kMaxBytes))
      ->type_name("SIZE");
  perf->add_option("-P,--parallel", options->parallel,
                   "Connections at a time, each with threads of its own")
      ->check(CLI::Range(std::uint64_t{1}, kMaxParallel))
      ->type_name("N");
  perf->add_option("-l,--length", options->size,
                   "Bytes of a message (128K; round trips: 64)")
      ->transform(SizeWithin(1, kMaxSize))
      ->type_name("SIZE");
  perf->add_flag("-R,--reverse", options->reverse, "The server sends");
  perf->add_flag("--bidir", options->both, "Both send");
  perf->add_option("-i,--interval", options->interval,
                   "Seconds between reports (1 on a terminal, with --compare\n"
                   "none; 0: none)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return text == "0" ? std::string() : CLI::Range(0.1, 3600.0)(text);
          },
          "0 or 0.1 to 3600"))
      ->type_name("SEC");
}

// What is measured in place of a stream.
void AddKinds(CLI::App* perf, Options* options) {
  perf->add_flag("--latency", options->latency, "Measure round trips");
  perf->add_flag("--short", options->brief,
                 "Measure how fast connections are made: each carries one\n"
                 "round trip");
  perf->add_option("--connections", options->connections,
                   "Measure round trips over this many connections in turn")
      ->check(CLI::Range(std::uint64_t{1}, kMaxConnections))
      ->type_name("N");
  perf->add_option("--active", options->active,
                   "How many of them have a round trip under way (64)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxActive))
      ->type_name("N");
  perf->add_option("--rate", options->rate,
                   "Begin this many round trips a second at random times,\n"
                   "whether or not those before have ended")
      ->check(CLI::Range(1.0, kMaxRate))
      ->type_name("N");
}

// Over what, and what is compared.
void AddTransports(CLI::App* perf, Options* options) {
  perf->add_option("--transport", options->transports,
                   "auto: rcsock with the best lane there is (default)\n"
                   "shm, rdma: rcsock with this lane\n"
                   "tcp: the kernel's TCP, without rcsock\n"
                   "verbs: raw RDMA writes, without sockets\n"
                   "With --compare a list: tcp,shm")
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "shm", "rdma", "tcp", "verbs"}))
      ->type_name("NAME");
  perf->add_flag("--compare", options->compare,
                 "Run the transports in turn and compare them");
  perf->add_option("--rounds", options->rounds,
                   "Runs for each figure of --compare and --report")
      ->check(CLI::Range(1, 99))
      ->capture_default_str()
      ->type_name("N");
  perf->add_option("--report", options->report,
                   "Measure latency, throughput over size, rate over\n"
                   "connections and CPU over rate, and write one HTML\n"
                   "page with plots")
      ->type_name("FILE");
}

// How the measurement is made, and shown.
void AddDetails(CLI::App* perf, Options* options) {
  perf->add_flag("--syscalls", options->syscalls,
                 "Count system calls too, in a short run of its own under\n"
                 "ptrace");
  perf->add_option("--settle", options->settle,
                   "How many seconds to wait for the lanes, at most")
      ->check(CLI::Range(0.0, kMaxSettle))
      ->capture_default_str()
      ->type_name("SEC");
  perf->add_option(
          "-A,--affinity", options->affinity,
          "Bind the measuring process to CPU N, and the server's\nto M")
      ->type_name("N[,M]");
  perf->add_option("--memory", options->memory,
                   "Where both ends have the bytes: host, or gpu:N for GPU N.\n"
                   "tcp then copies to the host, sends, receives, copies back")
      ->capture_default_str()
      ->type_name("KIND");
  perf->add_flag("-J,--json", options->json, "Print JSON");
}

}  // namespace

Command::Command(CLI::App* app)
    : perf_(app->add_subcommand("perf",
                                "Measure the way to another host, over each "
                                "lane")),
      worker_(app->add_subcommand("perf-worker", "")),
      options_(std::make_unique<Options>()) {
  worker_->group("");
  perf_->footer(kFooter);
  AddEnds(perf_, options_.get());
  AddAmount(perf_, options_.get());
  AddKinds(perf_, options_.get());
  AddTransports(perf_, options_.get());
  AddDetails(perf_, options_.get());
}

Command::~Command() = default;

bool Command::Run(int* status) {
  if (worker_->parsed()) {
    *status = RunWorker();
    return true;
  }
  if (!perf_->parsed()) return false;
  try {
    *status = perf::Run(*options_);
  } catch (const Error& error) {
    std::cout.flush();
    std::cerr << "rcsock: " << error.what() << "\n";
    *status = error.status;
  }
  return true;
}

}  // namespace rcsock::perf
