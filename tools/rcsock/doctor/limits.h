#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_LIMITS_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_LIMITS_H_

#include <cstdint>
#include <filesystem>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// What limits of this process and its cgroups keep lanes, or the background
// thread that makes them, from being: only what is too small is told.  `root`:
// where proc and sys are.
void ExamineLimits(Findings* findings, const std::filesystem::path& root = "/");

// The threads of all processes of that user.
std::uint64_t ThreadsOf(const std::filesystem::path& proc, unsigned uid);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_LIMITS_H_
