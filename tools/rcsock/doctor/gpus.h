#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_GPUS_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_GPUS_H_

#include <filesystem>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// Reports the GPUs of this host, their driver, whether RDMA devices can reach
// their memory, and which device is near. `sysfs` is /sys. The driver runs in a
// process of its own, for it may block. Reports nothing if there is no GPU.
// Returns how many GPUs there are.
int ExamineGpus(const std::filesystem::path& sysfs, Findings* findings);
// The body of that process: prints one line of JSON.
int GpusMain();

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_GPUS_H_
