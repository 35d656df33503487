#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_PROBE_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_PROBE_H_

#include <cstdint>
#include <functional>
#include <string>

namespace rcsock::tools {

// The port of `rcsock doctor --listen` unless the user names one.
constexpr std::uint16_t kDoctorPort = 18593;

// What became of a connection that two doctors made.
struct ProbeResult {
  std::string error;     // why it could not be tried, in words
  bool refused = false;  // nobody listens there
  bool missing = false;  // there is no library to preload
  std::string lane;      // "tcp", "shm", "rdma"
  std::string device;
  std::string reason;  // a key of base::Reason: why it stayed on TCP
  std::string reason_text;
  std::string peer_lane;  // the lane that the other end reports
  std::string peer_reason;
  double promoted_ms = 0;
  double median_us = 0;           // of round trips of 64 bytes
  std::uint64_t round_trips = 0;  // each verified
};

// Runs this program again under the preload.  The child connects to a doctor
// that listens, and tries its lane.  `lanes`: RCSOCK_LANES, or "" for the
// user's own.
ProbeResult Probe(const std::string& host, std::uint16_t port,
                  const std::string& lanes);
// Probes a lane of that kind with both ends on this host.
ProbeResult ProbeHere(const std::string& lanes);
// Answers probes until this process is killed.  Returns the exit status.
int Listen(std::uint16_t port);

// The hidden command that the children run: "doctor-probe MODE ...".
int ProbeMain(int argc, char** argv);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_PROBE_H_
