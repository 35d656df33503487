#include "lib/lane/rdma/device_memory.h"

#include <cstdint>

#include "lib/base/log.h"
#include "lib/base/unique_fd.h"

namespace rcsock::lane::rdma {

verbs::Mr RegisterDevice(ibv_pd* pd, const gpu::Memory& memory, void* at,
                         std::size_t length, int access, verbs::Error* error) {
  memory.BeforeSharing(at);
  base::UniqueFd fd;
  std::uint64_t offset = 0;
  const int refused = memory.Export(at, length, &fd, &offset);
  if (refused == 0) {
    verbs::Mr mr =
        verbs::RegisterDmabuf(pd, fd.get(), offset, at, length, access, error);
    if (mr != nullptr) return mr;
    // Memory that the device only reads needs no order.
    if ((access & IBV_ACCESS_REMOTE_WRITE) == 0) {
      mr = verbs::RegisterDmabuf(pd, fd.get(), offset, at, length,
                                 access | IBV_ACCESS_RELAXED_ORDERING, error);
      if (mr != nullptr) return mr;
    }
    RCSOCK_LOG(1, "rdma: %zu bytes of a GPU: %s: %d", length, error->call,
               error->code);
  } else {
    RCSOCK_LOG(1, "gpu: no dma-buf of %zu bytes: %d", length, refused);
  }
  return verbs::RegisterStrict(pd, at, length, access, error);
}

}  // namespace rcsock::lane::rdma
