// A GPU's driver for tests: libcuda.so.1, as far as rcsock and its tests use
// it. README.md says how.

#include "tests/gpu/fake_cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lib/gpu/cuda.h"

using namespace rcsock::gpu::cuda;

namespace {

// A file, which the program sees without any right, and the device with all.
struct Allocation {
  ~Allocation() {
    if (seen != nullptr) ::munmap(seen, size);
    if (device != nullptr && device != seen) ::munmap(device, size);
    if (file >= 0) ::close(file);
  }
  int file = -1;
  std::size_t size = 0;
  std::uint8_t* seen = nullptr;
  std::uint8_t* device = nullptr;
  Context context = nullptr;
  unsigned long long id = 0;
  bool managed = false;
  bool imported = false;
  bool mapped = false;
  bool accessible = true;  // mapped memory is so after cuMemSetAccess
};

// What cuMemCreate makes.
struct Physical {
  ~Physical() { ::close(file); }
  int file;
  std::size_t size;
  bool exported;  // may be
};
constexpr std::size_t kGranularity = 2 * 1024 * 1024;

// What cuIpcGetMemHandle gives: where another process finds the file.
struct IpcName {
  std::uint64_t magic;
  std::int32_t pid;
  std::int32_t file;
  std::uint64_t inode;
  std::uint64_t size;
};
constexpr std::uint64_t kMagic = 0x6563697665643031;
static_assert(sizeof(IpcName) <= sizeof(IpcHandle));

struct Copy {
  std::shared_ptr<Allocation> memory[2];  // keep the device's views
  void* to;
  const void* from;
  std::size_t bytes;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;
  pid_t owner = 0;
  int broken = 0;
  unsigned delay_us = 0;
  unsigned between_us = 0;
  std::string fail_name;
  int fail_calls = 0;
  int fail_with = 0;
  int fail_after = -1;
  int fail_result = 0;
  bool dmabuf = true;
  int ordering = 100;
  unsigned long long next_id = 1;
  std::uintptr_t next_handle = 16;
  std::map<Pointer, std::shared_ptr<Allocation>> memory;
  std::map<Handle, std::pair<std::shared_ptr<Physical>, int>> physical;
  std::map<Pointer, std::size_t> reserved;
  std::map<Pointer, std::shared_ptr<Physical>> mapped;
  std::set<Context> contexts;
  std::set<Context> ending;  // or ended
  Context primary = nullptr;
  int retained = 0;
  std::set<Stream> streams;
  std::map<Event, std::uint64_t> events;  // the copies that were begun by then
  std::map<std::uintptr_t, std::size_t> host;
  std::deque<Copy> queue;
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;
  fake_cuda::Counts counts{};
};

// Leaked: its thread lives as long as the process.
Driver& D() {
  static auto* driver = new Driver;
  return *driver;
}

thread_local std::vector<Context> tls_contexts;

void Work() {
  Driver& d = D();
  std::unique_lock lock(d.mutex);
  for (;;) {
    d.changed.wait(lock, [&] { return !d.queue.empty(); });
    const Copy one = d.queue.front();
    const unsigned delay =
        d.delay_us + (one.memory[1] != nullptr ? d.between_us : 0);
    lock.unlock();
    if (delay != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    }
    std::memcpy(one.to, one.from, one.bytes);
    lock.lock();
    d.queue.pop_front();
    ++d.ended;
    ++d.counts.copies;
    d.changed.notify_all();
  }
}

// Begins a call of the driver. What a program may not do ends with a result.
class Call {
 public:
  Call(const char* name, bool needs_context) : lock_(D().mutex) {
    Driver& d = D();
    if (d.fail_name == name && d.fail_calls-- <= 0) {
      result = d.fail_with;
      return;
    }
    if (d.owner != ::getpid()) {
      result = kNotInitialized;
    } else if (d.broken != 0) {
      result = d.broken;
    } else if (needs_context && tls_contexts.empty()) {
      result = kInvalidContext;
    } else if (needs_context && d.contexts.count(tls_contexts.back()) == 0) {
      result = kContextIsDestroyed;
    }
  }
  std::unique_lock<std::mutex>& lock() { return lock_; }
  Result result = kSuccess;

 private:
  std::unique_lock<std::mutex> lock_;
};

std::atomic<unsigned> import_us{0};

#define BEGIN(...)                  \
  Call call{__func__, __VA_ARGS__}; \
  Driver& d = D();                  \
  (void)d;                          \
  if (call.result != kSuccess) return call.result

std::shared_ptr<Allocation> Containing(Pointer at, std::size_t bytes) {
  Driver& d = D();
  auto found = d.memory.upper_bound(at);
  if (found == d.memory.begin()) return nullptr;
  --found;
  const auto& one = found->second;
  return one->accessible && at - found->first <= one->size &&
                 bytes <= one->size - (at - found->first)
             ? one
             : nullptr;
}

// As the driver's: what is under way ends first.
void Drain(std::unique_lock<std::mutex>* lock) {
  const std::uint64_t begun = D().begun;
  D().changed.wait(*lock, [begun] { return D().ended >= begun; });
}

template <class T>
T NewHandle() {
  return reinterpret_cast<T>(D().next_handle += 16);
}

Handle NewAllocation() { return D().next_handle += 16; }

// Makes both views of the allocation's file.
Result Map(const std::shared_ptr<Allocation>& one, std::size_t size,
           bool managed) {
  Driver& d = D();
  one->size = size;
  const auto map = [&](int rights) {
    void* at = ::mmap(nullptr, size, rights, MAP_SHARED, one->file, 0);
    return at == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(at);
  };
  one->seen = map(managed ? PROT_READ | PROT_WRITE : PROT_NONE);
  one->device = map(PROT_READ | PROT_WRITE);
  if (one->seen == nullptr || one->device == nullptr) return kOutOfMemory;
  one->context = tls_contexts.back();
  one->id = d.next_id++;
  one->managed = managed;
  return kSuccess;
}

Result Allocate(Pointer* to, std::size_t bytes, bool managed) {
  auto one = std::make_shared<Allocation>();
  const std::size_t size = (bytes + 4095) / 4096 * 4096;
  one->file = ::memfd_create("fake-gpu", MFD_CLOEXEC);
  if (one->file < 0 || ::ftruncate(one->file, static_cast<off_t>(size)) != 0) {
    return kOutOfMemory;
  }
  // With FAKE_CUDA_PLAIN a CPU may touch it, and a kernel register it.
  const bool plain = std::getenv("FAKE_CUDA_PLAIN") != nullptr;
  const Result result = Map(one, size, managed || plain);
  one->managed = managed;
  if (result != kSuccess) return result;
  *to = reinterpret_cast<Pointer>(one->seen);
  D().memory[*to] = std::move(one);
  return kSuccess;
}

// The size of the registered range around these bytes, or 0.
std::size_t Registered(const void* at, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  auto found = D().host.upper_bound(begin);
  if (found == D().host.begin()) return 0;
  --found;
  return begin + bytes <= found->first + found->second ? found->second : 0;
}

// A failure of the next copy, scripted or of its context, or kSuccess.
Result FailsNow() {
  Driver& d = D();
  if (d.ending.count(tls_contexts.back()) != 0) return kContextIsDestroyed;
  if (d.fail_after == 0) {
    d.fail_after = -1;
    return d.fail_result;
  }
  if (d.fail_after > 0) --d.fail_after;
  return kSuccess;
}

void Enqueue(Copy copy) {
  Driver& d = D();
  d.queue.push_back(std::move(copy));
  ++d.begun;
  d.counts.most_at_once =
      std::max<std::uint64_t>(d.counts.most_at_once, d.queue.size());
  d.changed.notify_all();
}

Result Begin(Pointer device, void* host, std::size_t bytes, bool to_host) {
  Driver& d = D();
  if (const Result result = FailsNow(); result != kSuccess) return result;
  const auto memory = Containing(device, bytes);
  if (memory == nullptr) return kInvalidValue;
  const auto offset = device - reinterpret_cast<Pointer>(memory->seen);
  const std::size_t range = Registered(host, bytes);
  if (range == 0) ++d.counts.pageable;
  if (range != 0 && range <= 1024 * 1024) d.counts.small += bytes;
  std::uint8_t* const at = memory->device + offset;
  Enqueue(to_host ? Copy{{memory, nullptr}, host, at, bytes}
                  : Copy{{memory, nullptr}, at, host, bytes});
  return kSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

Result cuInit(unsigned) {
  Driver& d = D();
  const std::lock_guard hold(d.mutex);
  // For programs that do not call fake_cuda_dmabuf.
  if (std::getenv("FAKE_CUDA_DMABUF") != nullptr) d.dmabuf = false;
  if (d.owner == ::getpid()) return kSuccess;
  if (d.owner != 0) return kNotInitialized;  // a child of fork
  d.owner = ::getpid();
  std::thread(Work).detach();
  return kSuccess;
}
Result cuDriverGetVersion(int* version) {
  *version = 12020;
  return kSuccess;
}
Result cuDeviceGetCount(int* count) {
  BEGIN(false);
  *count = 1;
  return kSuccess;
}
Result cuDeviceGet(Device* device, int ordinal) {
  BEGIN(false);
  *device = ordinal;
  return ordinal == 0 ? kSuccess : kInvalidDevice;
}
Result cuDeviceGetName(char* name, int length, Device) {
  BEGIN(false);
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return kSuccess;
}
Result cuDeviceGetPCIBusId(char* name, int length, Device) {
  BEGIN(false);
  std::snprintf(name, static_cast<std::size_t>(length), "0000:17:00.0");
  return kSuccess;
}
Result cuDeviceTotalMem_v2(std::size_t* bytes, Device) {
  BEGIN(false);
  *bytes = std::size_t{16} << 30;
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int attribute, Device) {
  BEGIN(false);
  *value = attribute == kWritesOrdering    ? d.ordering
           : attribute == kDmaBufSupported ? d.dmabuf
                                           : 0;
  return kSuccess;
}

Result cuCtxCreate_v2(Context* context, unsigned, Device) {
  BEGIN(false);
  *context = NewHandle<Context>();
  d.contexts.insert(*context);
  tls_contexts.push_back(*context);
  return kSuccess;
}
Result cuCtxDestroy_v2(Context context) {
  BEGIN(false);
  if (d.contexts.count(context) == 0) return kInvalidContext;
  // While any copy runs, the context is there. No more begin.
  d.ending.insert(context);
  while (d.ended < d.begun) Drain(&call.lock());
  d.contexts.erase(context);
  std::erase_if(d.memory, [&](const auto& one) {
    return one.second->context == context;
  });
  if (!tls_contexts.empty() && tls_contexts.back() == context) {
    tls_contexts.pop_back();
  }
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device) {
  BEGIN(false);
  if (d.primary == nullptr) {
    d.primary = NewHandle<Context>();
    d.contexts.insert(d.primary);
  }
  ++d.retained;
  *context = d.primary;
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(Device) {
  BEGIN(false);
  --d.retained;
  return kSuccess;
}
Result cuCtxPushCurrent_v2(Context context) {
  BEGIN(false);
  if (d.contexts.count(context) == 0) return kContextIsDestroyed;
  tls_contexts.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context* context) {
  if (tls_contexts.empty()) return kInvalidContext;
  *context = tls_contexts.back();
  tls_contexts.pop_back();
  return kSuccess;
}

Result cuMemAlloc_v2(Pointer* at, std::size_t bytes) {
  BEGIN(true);
  return Allocate(at, bytes, false);
}
Result cuMemAllocManaged(Pointer* at, std::size_t bytes, unsigned) {
  BEGIN(true);
  return Allocate(at, bytes, true);
}
Result cuMemFree_v2(Pointer at) {
  BEGIN(true);
  Drain(&call.lock());
  return d.memory.erase(at) != 0 ? kSuccess : kInvalidValue;
}
Result cuMemcpyHtoD_v2(Pointer to, const void* from, std::size_t bytes) {
  BEGIN(true);
  const auto memory = Containing(to, bytes);
  if (memory == nullptr) return kInvalidValue;
  std::memcpy(memory->device + (to - reinterpret_cast<Pointer>(memory->seen)),
              from, bytes);
  return kSuccess;
}
Result cuMemcpyDtoH_v2(void* to, Pointer from, std::size_t bytes) {
  BEGIN(true);
  const auto memory = Containing(from, bytes);
  if (memory == nullptr) return kInvalidValue;
  std::memcpy(to,
              memory->device + (from - reinterpret_cast<Pointer>(memory->seen)),
              bytes);
  // Every second copy is wrong.
  static int spoiled = 0;
  if (bytes != 0 && std::getenv("FAKE_CUDA_SPOILS") != nullptr &&
      ++spoiled % 2 == 0) {
    static_cast<char*>(to)[bytes / 2] ^= 1;
  }
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, std::size_t bytes,
                            Stream) {
  BEGIN(true);
  return Begin(to, const_cast<void*>(from), bytes, false);
}
Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, std::size_t bytes, Stream) {
  BEGIN(true);
  return Begin(from, to, bytes, true);
}

Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, std::size_t bytes,
                            Stream) {
  BEGIN(true);
  if (const Result result = FailsNow(); result != kSuccess) return result;
  const auto one = Containing(to, bytes);
  const auto other = Containing(from, bytes);
  if (one == nullptr || other == nullptr) return kInvalidValue;
  d.counts.between += bytes;
  Enqueue({{one, other},
           one->device + (to - reinterpret_cast<Pointer>(one->seen)),
           other->device + (from - reinterpret_cast<Pointer>(other->seen)),
           bytes});
  return kSuccess;
}

// As the driver's: by its base, and not for memory of other kinds.
Result cuIpcGetMemHandle(IpcHandle* handle, Pointer at) {
  BEGIN(true);
  const auto found = d.memory.find(at);
  if (found == d.memory.end() || found->second->managed ||
      found->second->imported || found->second->mapped) {
    return kInvalidValue;
  }
  struct stat file {};
  ::fstat(found->second->file, &file);
  const IpcName made{kMagic, ::getpid(), found->second->file, file.st_ino,
                     found->second->size};
  *handle = {};
  std::memcpy(handle, &made, sizeof made);
  return kSuccess;
}
// The handle may be anything.  No process opens its own memory.
Result cuIpcOpenMemHandle_v2(Pointer* at, IpcHandle handle, unsigned) {
  BEGIN(true);
  IpcName told;
  std::memcpy(&told, &handle, sizeof told);
  if (told.magic != kMagic) return kInvalidHandle;
  if (told.pid == ::getpid()) return kInvalidContext;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", told.pid, told.file);
  auto one = std::make_shared<Allocation>();
  one->file = ::open(path, O_RDWR | O_CLOEXEC);
  struct stat file {};
  if (one->file < 0 || ::fstat(one->file, &file) != 0 ||
      file.st_ino != told.inode) {
    return kInvalidHandle;
  }
  one->imported = true;
  const Result result = Map(one, static_cast<std::size_t>(file.st_size), false);
  if (result != kSuccess) return result;
  *at = reinterpret_cast<Pointer>(one->seen);
  d.memory[*at] = std::move(one);
  ++d.counts.opened;
  return kSuccess;
}
Result cuIpcCloseMemHandle(Pointer at) {
  BEGIN(true);
  Drain(&call.lock());
  const auto found = d.memory.find(at);
  if (found == d.memory.end() || !found->second->imported) return kInvalidValue;
  d.memory.erase(found);
  --d.counts.opened;
  return kSuccess;
}

// Memory that the program maps.
Result cuMemCreate(Handle* handle, std::size_t bytes, const void* properties,
                   unsigned long long) {
  BEGIN(false);
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  const int file = ::memfd_create("fake-gpu", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    return kOutOfMemory;
  }
  // CUmemAllocationProp: the type, then what it may be exported as.
  const int types = static_cast<const int*>(properties)[1];
  *handle = NewAllocation();
  d.physical[*handle] = {
      std::make_shared<Physical>(file, bytes, (types & kFileDescriptor) != 0),
      1};
  return kSuccess;
}
Result cuMemRelease(Handle handle) {
  BEGIN(false);
  const auto found = d.physical.find(handle);
  if (found == d.physical.end()) return kInvalidValue;
  if (--found->second.second == 0) d.physical.erase(found);
  return kSuccess;
}
Result cuMemRetainAllocationHandle(Handle* handle, void* at) {
  BEGIN(false);
  const auto memory = Containing(reinterpret_cast<Pointer>(at), 1);
  if (memory == nullptr || !memory->mapped) return kInvalidValue;
  *handle = NewAllocation();
  d.physical[*handle] = {d.mapped[reinterpret_cast<Pointer>(memory->seen)], 1};
  return kSuccess;
}
Result cuMemExportToShareableHandle(void* fd, Handle handle, int type,
                                    unsigned long long) {
  BEGIN(false);
  const auto found = d.physical.find(handle);
  if (found == d.physical.end() || type != kFileDescriptor ||
      !found->second.first->exported) {
    return kInvalidValue;
  }
  *static_cast<int*>(fd) =
      ::fcntl(found->second.first->file, F_DUPFD_CLOEXEC, 0);
  ++d.counts.descriptors;
  return kSuccess;
}
// The descriptor may be anything.
Result cuMemImportFromShareableHandle(Handle* handle, void* os_handle,
                                      int type) {
  ::usleep(import_us.exchange(0));
  BEGIN(false);
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
  char path[64], target[64] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  struct stat file {};
  if (type != kFileDescriptor ||
      ::readlink(path, target, sizeof target - 1) < 0 ||
      std::string(target).rfind("/memfd:fake-gpu", 0) != 0 ||
      ::fstat(fd, &file) != 0) {
    return kInvalidValue;
  }
  *handle = NewAllocation();
  d.physical[*handle] = {
      std::make_shared<Physical>(::fcntl(fd, F_DUPFD_CLOEXEC, 0),
                                 static_cast<std::size_t>(file.st_size), true),
      1};
  return kSuccess;
}
Result cuMemAddressReserve(Pointer* at, std::size_t bytes, std::size_t, Pointer,
                           unsigned long long) {
  BEGIN(false);
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  void* const made = ::mmap(nullptr, bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  *at = reinterpret_cast<Pointer>(made);
  d.reserved[*at] = bytes;
  return kSuccess;
}
Result cuMemAddressFree(Pointer at, std::size_t bytes) {
  BEGIN(false);
  const auto found = d.reserved.find(at);
  if (found == d.reserved.end() || found->second != bytes ||
      d.mapped.count(at) != 0) {
    return kInvalidValue;
  }
  ::munmap(reinterpret_cast<void*>(at), bytes);
  d.reserved.erase(found);
  return kSuccess;
}
Result cuMemMap(Pointer at, std::size_t bytes, std::size_t offset,
                Handle handle, unsigned long long) {
  BEGIN(false);
  const auto range = d.reserved.find(at);
  const auto found = d.physical.find(handle);
  if (range == d.reserved.end() || range->second < bytes ||
      found == d.physical.end() || offset != 0 || bytes % kGranularity != 0 ||
      found->second.first->size < bytes || d.mapped.count(at) != 0) {
    return kInvalidValue;
  }
  auto one = std::make_shared<Allocation>();
  one->file = ::fcntl(found->second.first->file, F_DUPFD_CLOEXEC, 0);
  one->size = bytes;
  // The reservation keeps the addresses.
  void* const seen = ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
                            MAP_SHARED | MAP_FIXED, one->file, 0);
  void* const device =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, one->file, 0);
  if (seen == MAP_FAILED || device == MAP_FAILED) return kOutOfMemory;
  one->seen = static_cast<std::uint8_t*>(seen);
  one->device = static_cast<std::uint8_t*>(device);
  one->id = d.next_id++;
  one->mapped = true;
  one->accessible = false;
  d.memory[at] = std::move(one);
  d.mapped[at] = found->second.first;
  return kSuccess;
}
Result cuMemUnmap(Pointer at, std::size_t bytes) {
  BEGIN(false);
  Drain(&call.lock());
  const auto found = d.memory.find(at);
  if (found == d.memory.end() || !found->second->mapped ||
      found->second->size != bytes) {
    return kInvalidValue;
  }
  // The addresses stay reserved.
  ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  found->second->seen = nullptr;
  d.memory.erase(found);
  d.mapped.erase(at);
  return kSuccess;
}
Result cuMemSetAccess(Pointer at, std::size_t bytes, const Access* access,
                      std::size_t count) {
  BEGIN(false);
  const auto found = d.memory.find(at);
  if (found == d.memory.end() || !found->second->mapped ||
      found->second->size != bytes || count != 1 ||
      access->location_type != kLocationOfDevice || access->device != 0 ||
      access->rights != kReadAndWrite) {
    return kInvalidValue;
  }
  found->second->accessible = true;
  return kSuccess;
}

Result cuPointerGetAttribute(void* value, int attribute, Pointer at) {
  BEGIN(false);
  const auto memory = Containing(at, 1);
  if (memory == nullptr) return kInvalidValue;
  switch (attribute) {
    case kPointerContext:
      *static_cast<Context*>(value) = memory->context;
      return kSuccess;
    case kPointerMemoryType:
      *static_cast<unsigned*>(value) = kMemoryOfDevice;
      return kSuccess;
    case kPointerBufferId:
      *static_cast<unsigned long long*>(value) = memory->id;
      return kSuccess;
    case kPointerIsManaged:
      // The driver writes one byte, or four, by its version.
      *static_cast<char*>(value) = memory->managed;
      return kSuccess;
    case kPointerDeviceOrdinal:
      *static_cast<int*>(value) = 0;
      return kSuccess;
    case kPointerRangeStart:
      *static_cast<Pointer*>(value) = reinterpret_cast<Pointer>(memory->seen);
      return kSuccess;
    case kPointerRangeSize:
      *static_cast<std::size_t*>(value) = memory->size;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}
Result cuPointerSetAttribute(const void*, int, Pointer) {
  BEGIN(false);
  return kSuccess;
}

Result cuStreamCreate(Stream* stream, unsigned) {
  BEGIN(true);
  *stream = NewHandle<Stream>();
  d.streams.insert(*stream);
  return kSuccess;
}
Result cuStreamDestroy_v2(Stream stream) {
  BEGIN(true);
  return d.streams.erase(stream) != 0 ? kSuccess : kInvalidHandle;
}
Result cuStreamQuery(Stream stream) {
  BEGIN(false);
  if (d.streams.count(stream) == 0) return kInvalidHandle;
  return d.ended >= d.begun ? kSuccess : kNotReady;
}
Result cuEventCreate(Event* event, unsigned) {
  BEGIN(true);
  *event = NewHandle<Event>();
  d.events[*event] = 0;
  return kSuccess;
}
Result cuEventRecord(Event event, Stream) {
  BEGIN(true);
  if (d.events.count(event) == 0) return kInvalidHandle;
  d.events[event] = d.begun;
  return kSuccess;
}
Result cuEventQuery(Event event) {
  BEGIN(false);
  const auto found = d.events.find(event);
  if (found == d.events.end()) return kInvalidHandle;
  return found->second <= d.ended ? kSuccess : kNotReady;
}
Result cuEventDestroy_v2(Event event) {
  BEGIN(true);
  return d.events.erase(event) != 0 ? kSuccess : kInvalidHandle;
}

Result cuMemHostRegister_v2(void* at, std::size_t bytes, unsigned) {
  BEGIN(true);
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  const auto after = d.host.lower_bound(begin + bytes);
  if (after != d.host.begin() &&
      std::prev(after)->first + std::prev(after)->second > begin) {
    ++d.counts.twice;
    return 712;  // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
  }
  d.host[begin] = bytes;
  return kSuccess;
}
Result cuMemHostUnregister(void* at) {
  BEGIN(true);
  return d.host.erase(reinterpret_cast<std::uintptr_t>(at)) != 0
             ? kSuccess
             : kInvalidValue;
}

Result cuMemGetHandleForAddressRange(void* handle, Pointer at,
                                     std::size_t bytes, int type,
                                     unsigned long long) {
  BEGIN(true);
  const auto memory = Containing(at, bytes);
  if (!d.dmabuf) return kNotSupported;
  if (memory == nullptr || at % 4096 != 0 || bytes % 4096 != 0 ||
      type != kDmaBufFd) {
    return kInvalidValue;
  }
  // The position says where the buffer begins.
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", memory->file);
  std::FILE* const file = std::fopen(path, "r+e");
  if (file == nullptr) return kOutOfMemory;
  const int fd = ::dup(::fileno(file));
  std::fclose(file);
  ::lseek(fd, static_cast<off_t>(at - reinterpret_cast<Pointer>(memory->seen)),
          SEEK_SET);
  *static_cast<int*>(handle) = fd;
  ++d.counts.exports;
  return kSuccess;
}

// A reset ends what is under way.
void fake_cuda_break(int result) {
  std::unique_lock lock(D().mutex);
  Drain(&lock);
  D().broken = result;
}
void fake_cuda_delay(unsigned us) {
  const std::lock_guard hold(D().mutex);
  D().delay_us = us;
}
void fake_cuda_delay_between(unsigned us) {
  const std::lock_guard hold(D().mutex);
  D().between_us = us;
}
void fake_cuda_delay_import(unsigned us) { import_us = us; }
void fake_cuda_fail_copy(int copies, int result) {
  const std::lock_guard hold(D().mutex);
  D().fail_after = copies;
  D().fail_result = result;
}
void fake_cuda_fail_call(const char* name, int calls, int result) {
  const std::lock_guard hold(D().mutex);
  D().fail_name = name == nullptr ? "" : name;
  D().fail_calls = calls;
  D().fail_with = result;
}
void fake_cuda_dmabuf(int can) {
  const std::lock_guard hold(D().mutex);
  D().dmabuf = can != 0;
}
void fake_cuda_ordering(int ordering) {
  const std::lock_guard hold(D().mutex);
  D().ordering = ordering;
}
void fake_cuda_counts(fake_cuda::Counts* counts) {
  const std::lock_guard hold(D().mutex);
  *counts = D().counts;
  counts->registered = D().host.size();
  counts->streams = D().streams.size();
  counts->mapped = D().mapped.size();
  counts->handles = D().physical.size();
  D().counts.most_at_once = 0;
}

}  // extern "C"
