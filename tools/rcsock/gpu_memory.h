#ifndef RCSOCK_TOOLS_RCSOCK_GPU_MEMORY_H_
#define RCSOCK_TOOLS_RCSOCK_GPU_MEMORY_H_

#include <cstddef>
#include <string>

namespace rcsock::tools {

// Memory of a GPU, as a program allocates and uses it: by the driver's own
// calls, found at run time.  Each function returns "", or what has failed.
//
// Threads: the thread that has called Make, whose current context the memory's
// becomes.
class GpuMemory {
 public:
  // `ordinal`: the GPU's number with the driver.
  std::string Make(int ordinal, std::size_t bytes);
  // Without it the memory goes with the process.
  void Free() { free_(memory_); }
  void* at() const { return reinterpret_cast<void*>(memory_); }
  std::string Put(const void* from, std::size_t bytes);
  std::string Take(void* to, std::size_t bytes);
  // Has the GPU see what RDMA devices have written before.
  void Flush();

 private:
  using Pointer = unsigned long long;
  static_assert(sizeof(Pointer) == sizeof(void*));

  Pointer memory_ = 0;
  int (*free_)(Pointer) = nullptr;
  int (*to_device_)(Pointer, const void*, std::size_t) = nullptr;
  int (*to_host_)(void*, Pointer, std::size_t) = nullptr;
  // Older drivers lack it, and have no GPU that needs it.
  int (*flush_)(int, int) = nullptr;
};

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_GPU_MEMORY_H_
