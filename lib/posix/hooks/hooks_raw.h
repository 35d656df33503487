#ifndef RCSOCK_LIB_POSIX_HOOKS_HOOKS_RAW_H_
#define RCSOCK_LIB_POSIX_HOOKS_HOOKS_RAW_H_

// What enters the kernel past the named calls: syscall(2), libaio.
namespace rcsock::posix::raw {

constexpr int kArguments = 6;

// If the call names a descriptor that rcsock follows, acts as the named call.
// Otherwise calls the kernel.
long Syscall(long number, const long (&a)[kArguments]);

// `blocks` (struct iocb) are about to be submitted.  Streams that they name go
// to TCP for good.
void BeforeAio(long count, void** blocks);

}  // namespace rcsock::posix::raw

#endif  // RCSOCK_LIB_POSIX_HOOKS_HOOKS_RAW_H_
