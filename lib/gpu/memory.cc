#include "lib/gpu/memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lib/gpu/cuda.h"
#include "lib/gpu/cuda_context.h"

namespace rcsock::gpu {

// The one kind of driver so far. Another kind would be asked where this one
// does not know the memory.
int Memory::Find(const void* at, std::size_t length,
                 std::shared_ptr<Memory>* found) {
  found->reset();
  return cuda::FindMemory(at, length, found);
}

// NVIDIA's driver gives a file of its control device.
bool IsDriversFile(int fd) {
  constexpr unsigned kMajor = 195;
  constexpr unsigned kControl = 255;
  struct statx found {};
  return ::syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
                   STATX_TYPE, &found) == 0 &&
         S_ISCHR(found.stx_mode) && found.stx_rdev_major == kMajor &&
         found.stx_rdev_minor == kControl;
}

void Memory::ForkPrepare() { cuda::ForkPrepare(); }

void Memory::ForkParent() { cuda::ForkParent(); }

void Memory::ForkChild() {
  cuda::ForkChild();
  cuda::ForkChildContexts();
}

int Memory::CopyOut(void* to, const void* from, std::size_t bytes) {
  int error = 0;
  const Lease pipe = Borrow(&error);
  if (pipe == nullptr) return error;
  error = pipe->NeedSlots();
  if (error != 0) return error;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t n = std::min(Pipe::kSlotBytes, bytes - done);
    error = pipe->FromDevice(0, in + done, n);
    if (error == 0) error = pipe->Wait(0);
    if (error != 0) return error;
    std::memcpy(out + done, pipe->slot(0), n);
    done += n;
  }
  return 0;
}

}  // namespace rcsock::gpu
