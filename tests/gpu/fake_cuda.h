#ifndef RCSOCK_TESTS_GPU_FAKE_CUDA_H_
#define RCSOCK_TESTS_GPU_FAKE_CUDA_H_

#include <cstdint>

// What libcuda.so.1 of this directory has beside the driver's calls.
namespace fake_cuda {

struct Counts {
  std::uint64_t copies;    // asynchronous ones that have ended
  std::uint64_t pageable;  // of these, with host memory that is not registered
  // Copies that were begun and had not ended, since the last fake_cuda_counts.
  std::uint64_t most_at_once;
  std::uint64_t exports;      // dma-bufs made
  std::uint64_t registered;   // ranges of host memory, now
  std::uint64_t streams;      // that live, now
  std::uint64_t small;        // bytes copied with a host range of at most 1 MiB
  std::uint64_t twice;        // ranges that were to be registered twice
  std::uint64_t between;      // bytes copied from device to device
  std::uint64_t opened;       // allocations of other processes, now
  std::uint64_t descriptors;  // of allocations, made
  std::uint64_t mapped;       // allocations, now
  std::uint64_t handles;      // of allocations, now
};

}  // namespace fake_cuda

extern "C" {
// Every call says `result` from now on, as after a GPU's reset; 0 ends that.
void fake_cuda_break(int result);
// Each copy takes so long.
void fake_cuda_delay(unsigned us);
// Each copy from device to device takes so much longer.
void fake_cuda_delay_between(unsigned us);
// The next import of a descriptor takes so long.
void fake_cuda_delay_import(unsigned us);
// The copy after `copies` more says `result`.
void fake_cuda_fail_copy(int copies, int result);
// Every call of that name says `result` behind the next `calls`, until `name`
// is null.
void fake_cuda_fail_call(const char* name, int calls, int result);
// Whether memory can be exported as a dma-buf.
void fake_cuda_dmabuf(int can);
// What CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING says.
void fake_cuda_ordering(int ordering);
void fake_cuda_counts(fake_cuda::Counts* counts);
}

#endif  // RCSOCK_TESTS_GPU_FAKE_CUDA_H_
