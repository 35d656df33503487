#ifndef RCSOCK_LIB_POSIX_SHARING_OTHER_HOLDERS_H_
#define RCSOCK_LIB_POSIX_SHARING_OTHER_HOLDERS_H_

#include <sys/types.h>

#include <cstdint>

namespace rcsock::posix {

// A connection whose other holders are sought.
struct Sought {
  std::uint64_t inode;
  // When the file of the connection was made, by CLOCK_BOOTTIME, or earlier; 0:
  // not known.
  std::uint64_t born_ns;
  uid_t owner;  // of the socket: whose process made or accepted it
  // Another process has it, or may have it.
  bool held = false;
};

// Looks for holders in the descriptors of all other processes.  Returns false
// if the time was not enough, or if not all processes are listed.
//
// If the descriptors of a process may not be read, the process may hold any
// connection, with an exception.  It cannot have inherited a connection that
// was made after it began.  Nor has it made a connection that belongs to none
// of its users.
bool LookForHolders(Sought* all, int count);

// Returns whether this process sees all possible holders of a connection that
// it has had since it began.  It sees them if it sees all processes of the
// host.  In a PID namespace, an ancestor of this process there must be older
// than the connection.  Then no process from that ancestor down to this one has
// inherited the connection from outside the namespace.  `born_ns`: see Sought.
bool SeesAllHolders(std::uint64_t born_ns);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_OTHER_HOLDERS_H_
