#ifndef RCSOCK_LIB_POSIX_GIVEN_H_
#define RCSOCK_LIB_POSIX_GIVEN_H_

// Connections that a program gives to the kernel, whose own threads then use
// them: each goes to TCP for good first.
namespace rcsock::posix {

// Before ioctl() with this request.
void BeforeGivingIoctl(unsigned long request, const void* argument);
// Before bpf(2): a connection that is put into a map of sockets.
void BeforeBpf(long command, const void* attributes, unsigned long size);
// The program has made a netlink socket of this protocol, by which it may name
// connections (iSCSI, NBD).  What it then sends is not looked at: all streams
// of the process go to TCP.
void AfterNetlink(int protocol);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_GIVEN_H_
