#ifndef RCSOCK_TOOLS_RCSOCK_PERF_OUTCOME_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_OUTCOME_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/rcsock/perf/host.h"
#include "tools/rcsock/perf/side.h"
#include "tools/rcsock/perf/spec.h"

namespace rcsock::perf {

struct Interval {
  double from = 0;  // seconds
  double to = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t messages = 0;
};

// System calls of one end while it measured, by name.
using Calls = std::map<std::string, std::uint64_t>;

// A run, as the client knows it afterwards.
struct Outcome {
  Spec spec;
  Side client;
  Side server;
  HostFacts there;  // the server
  std::vector<Interval> intervals;
  // The preload's counts of the client's process: bytes by lane, and why
  // connections were on TCP.
  std::map<std::string, std::uint64_t> lanes;
  std::map<std::string, std::uint64_t> reasons;
  // Likewise: bytes of GPUs by their way (gpu_bytes).
  std::map<std::string, std::uint64_t> ways;
  std::optional<Calls> client_calls;
  std::optional<Calls> server_calls;

  // Bytes received a second, both directions together.
  double Throughput() const;
  // Messages sent, both ways together.  Or round trips, or connections.
  std::uint64_t Messages() const;
  // Messages, round trips or connections a second.
  double Rate() const;
  // The part of the measured bytes that did not move over the kernel's TCP, by
  // the kernel's count.  For short connections, by the preload's count.  0 if
  // that count is missing.
  double Share() const;
  bool ShareKnown() const;
  // The lane that carried the bytes: "tcp", "shm", "rdma", "verbs", "shm+rdma".
  std::string Lane() const;
  // False if a lane was asked for by name and the bytes went over TCP.
  bool LaneUsed() const;
  // How a GPU's bytes went at the client: "rings 98.0%, slots 2.0%". "": none.
  std::string Ways() const;
  // Why the lane was not used, by rcsock's keys; "" if there are none.
  std::string WhyTcp() const;
  // The same in words for people.
  std::string WhyTcpInWords() const;
  // The figure that counts for the mode: throughput, the median round trip or
  // the rate.  MoreIsBetter says whether a larger figure is better.
  double Figure() const;
  bool MoreIsBetter() const;
  // CPU of one end, microseconds for each message.
  double CpuPerMessage(const Side& side) const;

 private:
  // Bytes in `lanes`.
  std::uint64_t Counted() const;
};

// Below this share of its bytes a lane has not been measured.
constexpr double kGoodShare = 0.95;

// Leaves out readings of the clock.  Without a vDSO, in a guest, each is a
// system call, and only the measuring program makes them.
double CallsPerMessage(const Calls& calls, std::uint64_t messages);
Calls CallsFromJson(const nlohmann::json& json);

// JSON for programs: see docs/perf.md.
nlohmann::json ToJson(const Outcome& outcome);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_OUTCOME_H_
