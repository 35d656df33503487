#ifndef RCSOCK_LIB_LANE_RDMA_DEVICE_MEMORY_H_
#define RCSOCK_LIB_LANE_RDMA_DEVICE_MEMORY_H_

#include <cstddef>

#include "lib/gpu/memory.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// Registers memory of a GPU with an RDMA device: by a dma-buf, else by its
// address, for which the kernel needs the GPU's peer-memory module. Returns
// null on failure, with the error of the last way in *error. The key has strict
// ordering.
verbs::Mr RegisterDevice(ibv_pd* pd, const gpu::Memory& memory, void* at,
                         std::size_t length, int access, verbs::Error* error);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_DEVICE_MEMORY_H_
