#ifndef RCSOCK_LIB_POSIX_HOOKS_RAW_H_
#define RCSOCK_LIB_POSIX_HOOKS_RAW_H_

// What enters the kernel past the named calls: syscall(2), libaio.
namespace rcsock::posix::raw {

constexpr int kArguments = 6;

// As the call of that name where a followed descriptor is concerned; else the
// kernel's.
long Syscall(long number, const long (&a)[kArguments]);

// `blocks` (struct iocb) are about to be submitted: streams that they name go
// to TCP for good.
void BeforeAio(long count, void** blocks);

}  // namespace rcsock::posix::raw

#endif  // RCSOCK_LIB_POSIX_HOOKS_RAW_H_
