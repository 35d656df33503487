#ifndef RCSOCK_TOOLS_RCSOCK_COUNTERS_COUNTERS_H_
#define RCSOCK_TOOLS_RCSOCK_COUNTERS_COUNTERS_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rcsock::tools {

// What a port counts of a network that loses or marks packets.  The names do
// not depend on the driver.
enum class Loss : std::uint8_t {
  kTimeouts,     // no acknowledgement came in time
  kSequence,     // packets came out of sequence, or the peer reported that
  kRnr,          // a receiver had no receive posted
  kRetransmits,  // sent again, if the driver counts that apart
  kExceeded,     // retries were used up: a QP has died
  kDiscards,     // the port itself has dropped packets
  kLinkErrors,   // the link went down, or bits were wrong
  kMarks,        // congestion: ECN marks, CNPs sent and handled
};
constexpr Loss kLosses[] = {
    Loss::kTimeouts, Loss::kSequence, Loss::kRnr,        Loss::kRetransmits,
    Loss::kExceeded, Loss::kDiscards, Loss::kLinkErrors, Loss::kMarks};
// "time_outs", for JSON and Prometheus; "time-outs", for people.
const char* LossKey(Loss loss);
const char* LossWords(Loss loss);

struct PortCounters {
  int port = 0;
  // The sums of the counters that the driver has.  Empty: the driver counts
  // nothing.
  std::map<Loss, std::uint64_t> counts;
  // The increase since the look before (AddChanges).
  std::map<Loss, std::uint64_t> changes;
};

// By the device's name.
using DeviceCounters = std::map<std::string, std::vector<PortCounters>>;

// Returns where sysfs is: $SYSFS_PATH, as for libibverbs, or /sys.
std::filesystem::path SysfsRoot();
// Returns the ports of the device, in order.
std::vector<PortCounters> CountersOf(const std::string& device,
                                     const std::filesystem::path& sysfs);
DeviceCounters AllCounters(const std::filesystem::path& sysfs);
// Fills in the changes of `now`, for ports and counters that `before` has, too.
// A counter that has begun anew has not changed.
void AddChanges(const DeviceCounters& before, DeviceCounters* now);
// "3 time-outs, 0 out of sequence".  `only_counted`: leaves out what is zero.
std::string CountersText(const PortCounters& port, bool only_counted);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_COUNTERS_COUNTERS_H_
