#ifndef RCSOCK_TOOLS_RCSOCK_PERF_COMPARE_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_COMPARE_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/rcsock/perf/client.h"
#include "tools/rcsock/perf/outcome.h"
#include "tools/rcsock/perf/print.h"

namespace rcsock::perf {

// The runs of one transport in a comparison.
struct Row {
  Transport transport = Transport::kTcp;
  std::vector<Outcome> runs;
  std::string failed;  // why there is no figure; "": there is one
  std::string plain;   // `failed`, in words for people

  // MedianFigure returns the median figure, and Median the run that has it.  Of
  // an even number of runs, Median returns the worse of the two in the middle,
  // whose figure is not the median.
  double MedianFigure() const;
  const Outcome& Median() const;
  // The smallest and the largest figure.
  std::pair<double, double> Spread() const;
  bool good() const { return failed.empty() && !runs.empty(); }
};

// Runs transports in turn with one server.  A transport that fails, or that
// carries no bytes, is left out from then on, with the reason.
class Rounds {
 public:
  Rounds(std::string host, std::uint16_t port,
         const std::vector<Transport>& transports);

  // From now on each run reports every `interval` seconds.  With `lines` it
  // prints a line for each, after a line that names the run.
  void Watch(double interval, bool lines);

  // Runs each transport once more, as `spec` says.  `what` is for the progress
  // line.  Returns a row for each transport, with at most one run.
  std::vector<Row> Run(Spec spec, const std::string& what);

  Client* client();

 private:
  struct Entry {
    Transport transport;
    std::string failed;
    std::string plain;
  };

  const std::string host_;
  const std::uint16_t port_;
  std::vector<Entry> entries_;
  std::unique_ptr<Client> client_;
  Progress progress_;
  double interval_ = 0;
  bool lines_ = false;
};

// Runs the transports `count` times in turn.  `what` begins the progress line.
std::vector<Row> Compare(Rounds* rounds, const Spec& spec, int count,
                         const std::string& what = "");
void PrintComparison(const Spec& spec, const std::vector<Row>& rows);
nlohmann::json ToJson(const std::vector<Row>& rows);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_COMPARE_H_
