#ifndef RCSOCK_TESTS_GPU_INCLUDE_CUDA_H_
#define RCSOCK_TESTS_GPU_INCLUDE_CUDA_H_

/* What the example of docs/gpu.md uses of the driver, for machines without its
 * headers. */
#include <stddef.h>

enum { CUDA_SUCCESS = 0 };
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef unsigned long long CUdeviceptr;

#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes);
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes);

#endif
