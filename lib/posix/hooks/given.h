#ifndef RCSOCK_LIB_POSIX_HOOKS_GIVEN_H_
#define RCSOCK_LIB_POSIX_HOOKS_GIVEN_H_

// Calls by which a program gives connections to the kernel, whose own threads
// then use them.  Each connection goes to TCP for good first.
namespace rcsock::posix {

// Called before ioctl() with this request.
void BeforeGivingIoctl(unsigned long request, const void* argument);
// Called before bpf(2), which may put a connection into a map of sockets.
void BeforeBpf(long command, const void* attributes, unsigned long size);
// The program has made a netlink socket of this protocol, by which it may name
// connections (iSCSI, NBD).  rcsock does not look at what the program then
// sends, so all streams of the process go to TCP.
void AfterNetlink(int protocol);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_HOOKS_GIVEN_H_
