#ifndef RCSOCK_LIB_GPU_CUDA_H_
#define RCSOCK_LIB_GPU_CUDA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

// The calls of NVIDIA's driver that rcsock makes, by the driver's public ABI.
// libcuda.so.1 is found at run time.
namespace rcsock::gpu::cuda {

using Result = int;                  // CUresult
using Device = int;                  // CUdevice
using Pointer = unsigned long long;  // CUdeviceptr
using Context = struct ContextOfDriver*;
using Stream = struct StreamOfDriver*;
using Event = struct EventOfDriver*;
// CUipcMemHandle: names an allocation to other processes.
struct IpcHandle {
  char bytes[64];
};
using Handle = unsigned long long;  // CUmemGenericAllocationHandle
// CUmemAccessDesc: a device and what it may do.
struct Access {
  int location_type;
  int device;
  int rights;
};

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kDeinitialized = 4;
constexpr Result kDeviceUnavailable = 46;
constexpr Result kNoDevice = 100;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotReady = 600;
constexpr Result kContextIsDestroyed = 709;
constexpr Result kNotSupported = 801;

// CUpointer_attribute
constexpr int kPointerContext = 1;
constexpr int kPointerMemoryType = 2;
constexpr int kPointerSyncMemops = 6;
constexpr int kPointerBufferId = 7;
constexpr int kPointerIsManaged = 8;
constexpr int kPointerDeviceOrdinal = 9;
constexpr int kPointerRangeStart = 11;
constexpr int kPointerRangeSize = 12;
// CUmemorytype
constexpr unsigned kMemoryOfDevice = 2;
// CUdevice_attribute
constexpr int kWritesOrdering = 118;
constexpr int kDmaBufSupported = 124;
// CUmemRangeHandleType
constexpr int kDmaBufFd = 1;
// CUmemAllocationHandleType
constexpr int kFileDescriptor = 1;
// CUmemLocationType, CUmemAccess_flags
constexpr int kLocationOfDevice = 1;
constexpr int kReadAndWrite = 3;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kRegisterPortable = 1;
constexpr unsigned kIpcLazyPeerAccess = 1;

// X(field, exported name, parameters)
#define RCSOCK_CUDA_CALLS(X)                                                   \
  X(PointerGetAttribute, "cuPointerGetAttribute", (void*, int, Pointer))       \
  X(PointerSetAttribute, "cuPointerSetAttribute", (const void*, int, Pointer)) \
  X(DeviceGet, "cuDeviceGet", (Device*, int))                                  \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))           \
  X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))             \
  X(PrimaryRelease, "cuDevicePrimaryCtxRelease_v2", (Device))                  \
  X(CtxPush, "cuCtxPushCurrent_v2", (Context))                                 \
  X(CtxPop, "cuCtxPopCurrent_v2", (Context*))                                  \
  X(StreamCreate, "cuStreamCreate", (Stream*, unsigned))                       \
  X(StreamDestroy, "cuStreamDestroy_v2", (Stream))                             \
  X(StreamQuery, "cuStreamQuery", (Stream))                                    \
  X(EventCreate, "cuEventCreate", (Event*, unsigned))                          \
  X(EventRecord, "cuEventRecord", (Event, Stream))                             \
  X(EventQuery, "cuEventQuery", (Event))                                       \
  X(EventDestroy, "cuEventDestroy_v2", (Event))                                \
  X(CopyToHost, "cuMemcpyDtoHAsync_v2", (void*, Pointer, std::size_t, Stream)) \
  X(CopyToDevice, "cuMemcpyHtoDAsync_v2",                                      \
    (Pointer, const void*, std::size_t, Stream))                               \
  X(HostRegister, "cuMemHostRegister_v2", (void*, std::size_t, unsigned))      \
  X(HostUnregister, "cuMemHostUnregister", (void*))

// Calls that a driver may lack: null there.
#define RCSOCK_CUDA_LATE_CALLS(X)                                          \
  X(HandleForRange, "cuMemGetHandleForAddressRange",                       \
    (void*, Pointer, std::size_t, int, unsigned long long))                \
  X(IpcGet, "cuIpcGetMemHandle", (IpcHandle*, Pointer))                    \
  X(IpcOpen, "cuIpcOpenMemHandle_v2", (Pointer*, IpcHandle, unsigned))     \
  X(IpcClose, "cuIpcCloseMemHandle", (Pointer))                            \
  X(CopyOnDevices, "cuMemcpyDtoDAsync_v2",                                 \
    (Pointer, Pointer, std::size_t, Stream))                               \
  X(RetainHandle, "cuMemRetainAllocationHandle", (Handle*, void*))         \
  X(ReleaseHandle, "cuMemRelease", (Handle))                               \
  X(ExportHandle, "cuMemExportToShareableHandle",                          \
    (void*, Handle, int, unsigned long long))                              \
  X(ImportHandle, "cuMemImportFromShareableHandle", (Handle*, void*, int)) \
  X(ReserveRange, "cuMemAddressReserve",                                   \
    (Pointer*, std::size_t, std::size_t, Pointer, unsigned long long))     \
  X(FreeRange, "cuMemAddressFree", (Pointer, std::size_t))                 \
  X(MapHandle, "cuMemMap",                                                 \
    (Pointer, std::size_t, std::size_t, Handle, unsigned long long))       \
  X(UnmapRange, "cuMemUnmap", (Pointer, std::size_t))                      \
  X(SetAccess, "cuMemSetAccess",                                           \
    (Pointer, std::size_t, const Access*, std::size_t))

struct Calls {
#define X(field, name, parameters) Result(*field) parameters = nullptr;
  RCSOCK_CUDA_CALLS(X)
  RCSOCK_CUDA_LATE_CALLS(X)
#undef X
};

// Returns true if the driver has all that passes memory of cuMemMap.
inline bool HasDescriptors(const Calls& calls) {
  return calls.RetainHandle != nullptr && calls.ReleaseHandle != nullptr &&
         calls.ExportHandle != nullptr && calls.ImportHandle != nullptr &&
         calls.ReserveRange != nullptr && calls.FreeRange != nullptr &&
         calls.MapHandle != nullptr && calls.UnmapRange != nullptr &&
         calls.SetAccess != nullptr;
}

// Returns the calls of the driver, if the program has loaded it, else null.
// Never loads the driver: without it a program has no memory of a GPU. Any
// thread may call it.
const Calls* Loaded();
// In the child of fork: frees what another thread may have held.
void ForkChild();
// In the parent, from before the fork until after it, no thread of Loaded is in
// the loader.  Otherwise the child would find the loader amid its work.
void ForkPrepare();
void ForkParent();
// Counts the calls of ForkChild.
inline constinit std::atomic<unsigned> forks{0};

// Returns the errno for a result, see docs/gpu.md. 0 for success.
int ToErrno(Result result);

}  // namespace rcsock::gpu::cuda

#endif  // RCSOCK_LIB_GPU_CUDA_H_
