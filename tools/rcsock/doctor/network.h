#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_NETWORK_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_NETWORK_H_

#include <sched.h>

#include <filesystem>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// Reports what the ports of all RDMA devices have counted of a network that
// loses packets.
void ExamineCounters(const std::filesystem::path& sysfs, Findings* findings);
// Reports whether the CPUs that this process may use (`allowed`) are near each
// device, and where the interrupts of its completion vectors go.  A device in
// software is near no CPU.
void ExaminePlaces(const std::filesystem::path& sysfs,
                   const std::filesystem::path& proc, const cpu_set_t& allowed,
                   Findings* findings);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_NETWORK_H_
