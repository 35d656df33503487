#ifndef RCSOCK_LIB_GPU_MEMORY_H_
#define RCSOCK_LIB_GPU_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/unique_fd.h"

namespace rcsock::gpu {

// Bytes of GPUs that this process has sent or received, by their way.
struct Counts {
  std::atomic<std::uint64_t> slots{0};    // through pinned slots
  std::atomic<std::uint64_t> rings{0};    // between a GPU and a shared ring
  std::atomic<std::uint64_t> devices{0};  // read or written by an RDMA device
  std::atomic<std::uint64_t> passed{0};   // from one GPU's memory to another's
};
inline constinit Counts counts;

// Host memory of the caller's that a driver has pinned. The caller calls End
// before it unmaps the memory. If it does not, the pages stay pinned.
//
// Threads: any.
class HostPages {
 public:
  virtual ~HostPages() = default;
  // Has the driver unpin the memory. No copy is under way there. The driver may
  // wait for all that the GPU does, so the calling thread must be one that no
  // other thread waits for.
  virtual void End() = 0;
  // Returns true if the memory is pinned for copies of that context
  // (Memory::context). The end of the context unpins it.
  virtual bool pinned(const void* context) const = 0;
};

// How one process names bytes of a device to another, in memory that both
// share. A peer writes it, so each field is hostile until it is checked.
struct Passed {
  // kByHandle: the handle alone opens the allocation. kByDescriptor: a
  // descriptor does (Memory::Descriptor), and the handle names the process.
  static constexpr std::uint64_t kByHandle = 0;
  static constexpr std::uint64_t kByDescriptor = 1;

  std::byte handle[64];  // what the driver calls the allocation
  std::uint64_t id;      // of the allocation; no number comes twice
  std::uint64_t offset;  // of the bytes in the allocation
  std::uint64_t length;
  std::uint64_t size;  // of the allocation, if by descriptor
  std::uint64_t way;
};

// Returns true if the file is of a kind that a driver gives for an allocation.
// Asks nothing that could wait.
bool IsDriversFile(int fd);

// Another process's allocation, open in this process. The end of the context
// that it was opened for closes it, too. Each Memory::Open counts one user.
//
// Threads: any.
class Import {
 public:
  virtual ~Import() = default;
  // Closes it, once all its users have called this. No copy of the caller's is
  // under way there. The driver may wait, as in HostPages::End.
  virtual void End() = 0;
  // Returns the address of these bytes, or null: they are not within the
  // allocation, or it is closed.
  virtual const void* At(std::uint64_t offset, std::uint64_t length) const = 0;
};

// Copies between memory of a device and host memory: slots of the pipe's own,
// or any memory that HostPages hold. Each slot has one copy under way at most,
// and the copies run in the order in which they began.
//
// Threads: one at a time.
class Pipe {
 public:
  static constexpr int kSlots = 4;
  static constexpr std::size_t kSlotBytes = 512 * 1024;

  virtual ~Pipe() = default;
  // Makes the slots' memory, if there is none yet. Returns 0 or an errno.
  // slot() may be called only after that.
  virtual int NeedSlots() = 0;
  virtual std::byte* slot(int index) const = 0;
  // Begin a copy of `bytes`, with slot(slot), or with the memory at `host`,
  // which is in its place. The slot has no copy under way. Return 0 or an
  // errno; then no copy has begun.
  int FromDevice(int slot, const void* from, std::size_t bytes) {
    return FromDevice(slot, from, bytes, this->slot(slot));
  }
  int ToDevice(int slot, void* to, std::size_t bytes) {
    return ToDevice(slot, to, bytes, this->slot(slot));
  }
  virtual int FromDevice(int slot, const void* from, std::size_t bytes,
                         std::byte* host) = 0;
  virtual int ToDevice(int slot, void* to, std::size_t bytes,
                       const std::byte* host) = 0;
  // Begins a copy between two places that the device reaches. As FromDevice,
  // but it needs no slot's memory. EOPNOTSUPP: the driver lacks the call.
  virtual int OnDevices(int slot, void* to, const void* from,
                        std::size_t bytes) = 0;
  // Returns false while the slot's copy is under way. Then sets *error to 0 or
  // an errno.
  virtual bool Look(int slot, int* error) = 0;
  // Waits until the slot's copy has ended, kMostWaitNs at most. Returns 0 or an
  // errno. ETIMEDOUT: the copy is still under way.
  virtual int Wait(int slot) = 0;
  static constexpr std::uint64_t kMostWaitNs = 10'000'000'000;
};

// Memory of a device, as a driver knows it. The object outlives the allocation:
// a program may free its allocation at any time, and each call reports that by
// an errno.
//
// Threads: any.
class Memory {
 public:
  // Finds which memory the `length` bytes at `at` are. Sets *found, to null for
  // host memory. The bytes of a device lie on one device. Returns 0 or an
  // errno. EINVAL: the range goes beyond the device's memory.
  static int Find(const void* at, std::size_t length,
                  std::shared_ptr<Memory>* found);
  // In the child of fork, where no driver works.
  static void ForkChild();
  static void ForkPrepare();
  static void ForkParent();

  virtual ~Memory() = default;
  // Returns 0 if these bytes are still the memory that was found, else an
  // errno. EFAULT: they have been freed.
  virtual int Check(const void* at, std::size_t length) const = 0;
  // Gives the pipe back to its device, after the copies under way.
  struct GiveBack {
    Memory* memory = nullptr;
    void operator()(Pipe* pipe) const { memory->Return(pipe); }
  };
  using Lease = std::unique_ptr<Pipe, GiveBack>;
  // Lends a pipe for this memory. Null: *error says why.
  Lease Borrow(int* error) { return Lease(Take(error), GiveBack{this}); }
  // Has the driver pin the caller's memory for the copies of this device. Null:
  // the driver refuses, or no more may be pinned.
  virtual std::shared_ptr<HostPages> Pin(std::byte* at, std::size_t bytes) = 0;
  virtual const void* context() const = 0;
  // Copies to host memory, and waits. Returns 0 or an errno.
  int CopyOut(void* to, const void* from, std::size_t bytes);

  // Has the device carry out the program's copies in order with those of other
  // devices. Call it before another device gets the memory.
  virtual void BeforeSharing(const void* at) const = 0;
  // Makes a dma-buf of whole pages around the bytes. *offset is where the bytes
  // begin. Returns 0 or an errno. EOPNOTSUPP: the device or its driver can't.
  virtual int Export(const void* at, std::size_t length, base::UniqueFd* fd,
                     std::uint64_t* offset) const = 0;
  // Names to other processes as many of these bytes as lie in one allocation.
  // Returns 0 or an errno. EOPNOTSUPP: the driver does not pass this memory.
  virtual int Pass(const void* at, std::size_t length, Passed* passed) = 0;
  // Makes a descriptor of the allocation around `at`, which Pass has named
  // kByDescriptor. Returns 0 or an errno.
  virtual int Descriptor(const void* at, base::UniqueFd* fd) = 0;
  // Returns true if Open would find it open.
  virtual bool IsOpen(const Passed& passed) const = 0;
  // Opens what a peer has passed, for copies of this device. `fd` is the peer's
  // descriptor, or -1. The caller keeps it. Null: the driver refuses.
  virtual std::shared_ptr<Import> Open(const Passed& passed, int fd) = 0;
  // Returns true if work that the program starts finds all that another device
  // wrote before a message that this host has seen.
  virtual bool OrdersWrites() const = 0;

 protected:
  virtual Pipe* Take(int* error) = 0;
  virtual void Return(Pipe* pipe) = 0;
};

}  // namespace rcsock::gpu

#endif  // RCSOCK_LIB_GPU_MEMORY_H_
