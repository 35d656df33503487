#ifndef RCSOCK_TOOLS_RCSOCK_STAT_PICTURE_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_PICTURE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/posix/socket/snapshot.h"
#include "tools/rcsock/counters/counters.h"

namespace rcsock::tools {

// The source of what is known about a process.
enum class Source {
  kAnswer,     // the process has answered
  kTcpOnly,    // the kernel: the process has never looked for a lane
  kSilent,     // the kernel: the process should have answered, and did not
  kElsewhere,  // nothing: the process is in another network namespace
};

struct StreamPicture {
  posix::SnapshotStream is{};
  bool has_rate = false;
  double tx_rate = 0;  // bytes a second, over all paths
  double rx_rate = 0;
};

struct ProcessPicture {
  pid_t pid = 0;
  uid_t uid = 0;
  std::string program;
  Source source = Source::kTcpOnly;
  std::string trouble;          // kSilent: the reason, if known
  posix::SnapshotHead total{};  // kAnswer
  std::vector<StreamPicture> streams;
};

struct Picture {
  std::uint64_t monotonic_ns = 0;
  std::vector<ProcessPicture> processes;  // by pid
  DeviceCounters counters;                // of devices in use
};

struct DeviceTotals {
  std::uint64_t streams = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
};
std::map<std::string, DeviceTotals> Devices(const Picture& picture);

struct CollectOptions {
  pid_t pid = 0;        // 0: all processes
  std::string program;  // a glob of the file's name or of ps(1)'s; "": any
  int timeout_ms = 500;
};
// Returns all processes under rcsock that this user may ask.  Waits a time-out
// for each answer, and ten of them for all together.
Picture Collect(const CollectOptions& options);

// Fills in the rates of `now` for streams that `before` has, too, and the
// changes of the counters.
void AddRates(const Picture& before, Picture* now);

// Names of values that another process has sent.  "?" if there is no such
// value.
const char* LaneName(posix::SnapshotLane lane);
const char* StateName(posix::SnapshotState state);
const char* ReasonName(std::uint8_t reason);
// Returns the reason in words, or "" for a stream on a lane.
std::string ReasonWords(std::uint8_t reason);
// "1.2.3.4:80", "[::1]:80".
std::string AddressText(const std::uint8_t* address, std::uint16_t port);

// The outputs.
std::string AsText(const Picture& picture, bool colour);
std::string AsJson(const Picture& picture, bool pretty);
std::string AsPrometheus(const Picture& picture);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_PICTURE_H_
