#ifndef RCSOCK_TOOLS_RCSOCK_PERF_SIDE_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_SIDE_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "tools/rcsock/perf/histogram.h"

namespace rcsock::perf {

// What one end has measured.
struct Side {
  double seconds = 0;     // from the first message to the last
  double tx_seconds = 0;  // until its last byte was sent
  double rx_seconds = 0;  // until the last byte had come
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t messages = 0;  // sent in a stream, or round trips
  double user = 0;             // CPU seconds of the whole process
  double system = 0;
  std::uint64_t switches = 0;  // context switches
  // The part of tx_bytes and rx_bytes that the kernel's TCP has carried, by the
  // kernel's count.
  std::uint64_t tcp_bytes = 0;
  Histogram latency;  // of round trips, ns
  Histogram connect;  // of connect(), ns

  std::uint64_t Moved() const { return tx_bytes + rx_bytes; }
  double Cpu() const { return user + system; }
};

nlohmann::json ToJson(const Side& side);
// Throws Error.
Side SideFromJson(const nlohmann::json& json);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_SIDE_H_
