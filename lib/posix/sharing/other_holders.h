#ifndef RCSOCK_LIB_POSIX_SHARING_OTHER_HOLDERS_H_
#define RCSOCK_LIB_POSIX_SHARING_OTHER_HOLDERS_H_

#include <sys/types.h>

#include <cstdint>

namespace rcsock::posix {

// A connection whose other holders are sought.
struct Sought {
  std::uint64_t inode;
  // When its file was made, by CLOCK_BOOTTIME, or earlier; 0: not known.
  std::uint64_t born_ns;
  uid_t owner;  // of the socket: whose process made or accepted it
  // Another process has it, or may have it.
  bool held = false;
};

// Looks for holders in the descriptors of all other processes.  False: the time
// was not enough, or not all processes are listed.
//
// If a process's descriptors may not be read, it may hold any connection, with
// an exception.  It cannot have inherited a connection that was made after it
// began.  Nor has it made a connection that belongs to none of its users.
bool LookForHolders(Sought* all, int count);

// Whether this process sees all possible holders of a connection that it has
// had since it began.  It does if it sees all processes of the host.  In a PID
// namespace, an ancestor of this process there must be older than the
// connection.  Then neither that ancestor nor a process between the two has
// inherited the connection from outside the namespace.  `born_ns`: see Sought.
bool SeesAllHolders(std::uint64_t born_ns);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_OTHER_HOLDERS_H_
