#ifndef RCSOCK_LIB_POSIX_HOOKS_RAW_H_
#define RCSOCK_LIB_POSIX_HOOKS_RAW_H_

#include "lib/base/real.h"

// What enters the kernel past the named calls: syscall(2), io_uring, libaio.
namespace rcsock::posix::raw {

constexpr int kArguments = 6;

// As the call of that name where a followed descriptor is concerned; else the
// kernel's.
long Syscall(long number, const long (&a)[kArguments]);

// A ring is about to be made.  What is put into it is seen by nobody, so no
// stream of this process may be on a lane from now on.
void BeforeIoUring();

// `blocks` (struct iocb) are about to be submitted: streams that they name go
// to TCP for good.
void BeforeAio(long count, void** blocks);

// The library's own definition of `name`.
template <class F>
F* Next(void** slot, const char* name) {
  void* found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (found == nullptr) found = real::Resolve(slot, name);
  return reinterpret_cast<F*>(found);
}

}  // namespace rcsock::posix::raw

#endif  // RCSOCK_LIB_POSIX_HOOKS_RAW_H_
