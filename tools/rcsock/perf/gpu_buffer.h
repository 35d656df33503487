#ifndef RCSOCK_TOOLS_RCSOCK_PERF_GPU_BUFFER_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_GPU_BUFFER_H_

#include <cstddef>
#include <vector>

#include "tools/rcsock/gpu_memory.h"

namespace rcsock::perf {

// A message in a GPU's memory. Under rcsock the message is sent from there, and
// received there. Otherwise a copy goes to host memory first, as in a program
// without rcsock. Each call throws Error.
//
// Threads: the thread that has made it.
class GpuBuffer {
 public:
  GpuBuffer(int ordinal, std::size_t size);
  ~GpuBuffer();
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  // Sends the first `size` bytes, and waits until the memory may change.
  void Send(int fd, std::size_t size);
  // Returns how many bytes have come, at most the buffer's size; 0: the end.
  std::size_t Receive(int fd);

 private:
  struct Rcsock;
  const Rcsock* const rcsock_;  // null: not under rcsock
  const std::size_t size_;
  tools::GpuMemory memory_;
  std::vector<char> host_;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_GPU_BUFFER_H_
