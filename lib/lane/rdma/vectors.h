#ifndef RCSOCK_LIB_LANE_RDMA_VECTORS_H_
#define RCSOCK_LIB_LANE_RDMA_VECTORS_H_

#include <sched.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// Sets the CPUs of a list like "0-3,8". Returns false if `text` is not a list
// of CPUs; `cpus` is then undefined.
bool ParseCpus(const char* text, cpu_set_t* cpus);

// The CPUs that the interrupt of each completion vector of a device goes to, in
// the order of the vectors. Empty: they cannot be read. `sysfs` and `proc` are
// "/sys" and "/proc". Throws bad_alloc.
std::vector<cpu_set_t> VectorCpus(const char* sysfs, const char* proc,
                                  const char* device);

// Chooses one of `vectors` completion vectors for a bell. Bells of one process
// get different vectors. If there are vectors whose interrupts go to `allowed`
// CPUs, bells get these. Bell 0 gets a vector of `cpu`, or begins anywhere if
// `cpu` is negative.
std::uint32_t ChooseVector(const std::vector<cpu_set_t>& cpus,
                           std::uint32_t vectors, const cpu_set_t& allowed,
                           int cpu, std::uint32_t random, int bell);

// The vector whose interrupt goes to `cpu`. If several do, bells get them in
// turn. None: none of the first `vectors` vectors has its interrupt there.
std::optional<std::uint32_t> VectorOfCpu(const std::vector<cpu_set_t>& cpus,
                                         std::uint32_t vectors, int cpu,
                                         int bell);

// The completion vector for a bell's poller on this device: one of `cpu`, where
// the bell's thread runs, or if there is none, one of the process's. Reads the
// device's interrupts once in a process. For the conductor alone.
std::uint32_t VectorOf(const ibv_context* context, int bell, int cpu);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_VECTORS_H_
