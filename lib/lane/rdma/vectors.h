#ifndef RCSOCK_LIB_LANE_RDMA_VECTORS_H_
#define RCSOCK_LIB_LANE_RDMA_VECTORS_H_

#include <sched.h>

#include <cstdint>
#include <vector>

#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// Sets the CPUs of "0-3,8".  False: it is no such list; `cpus` is undefined.
bool ParseCpus(const char* text, cpu_set_t* cpus);

// The CPUs that the interrupt of each completion vector of a device goes to, in
// the vectors' order.  Empty: it cannot be read.  `sysfs` and `proc` are "/sys"
// and "/proc".  Throws bad_alloc.
std::vector<cpu_set_t> VectorCpus(const char* sysfs, const char* proc,
                                  const char* device);

// Of `vectors` completion vectors the one for a bell: bells of one process have
// different ones, whose interrupts go to `allowed` CPUs if there are such.
// Bell 0 has one of `cpu`, or begins anywhere if that is negative.
std::uint32_t ChooseVector(const std::vector<cpu_set_t>& cpus,
                           std::uint32_t vectors, const cpu_set_t& allowed,
                           int cpu, std::uint32_t random, int bell);

// The completion vector for a bell's poller on this device.  Reads the device's
// interrupts once in a process.  The conductor's.
std::uint32_t VectorOf(const ibv_context* context, int bell);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_VECTORS_H_
