#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_LIMITS_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_LIMITS_H_

#include <cstdint>
#include <filesystem>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// Looks for limits of this process and its cgroups that leave no room for
// lanes, or for the background thread that makes them.  Reports only what is
// too small.  `root` is where proc and sys are.
void ExamineLimits(Findings* findings, const std::filesystem::path& root = "/");

// Returns the number of threads of all processes of that user.
std::uint64_t ThreadsOf(const std::filesystem::path& proc, unsigned uid);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_LIMITS_H_
