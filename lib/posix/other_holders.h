#ifndef RCSOCK_LIB_POSIX_OTHER_HOLDERS_H_
#define RCSOCK_LIB_POSIX_OTHER_HOLDERS_H_

#include <sys/types.h>

#include <cstdint>

namespace rcsock::posix {

// A connection whose other holders are looked for.
struct Sought {
  std::uint64_t inode;
  // When its file was made, by CLOCK_BOOTTIME, or earlier; 0: not known.
  std::uint64_t born_ns;
  uid_t owner;  // of the socket: whose process has made or accepted it
  // Another process has it, or may have it.
  bool held = false;
};

// Looks for them in the descriptors of all other processes.  False: there was
// no time to look at all, or not all are listed.
//
// A process whose descriptors may not be read may hold any connection, with one
// exception.  It cannot have inherited one that was made after it began, nor
// has it made one that belongs to none of its users.
bool LookForHolders(Sought* all, int count);

// Whether this process sees all that may hold a connection which it has had
// since it began.  They are all of the host's, or all of its PID namespace if
// an ancestor of this process there is older than the connection.  Then neither
// that ancestor nor a process between the two has inherited the connection from
// outside the namespace.  `born_ns`: as above.
bool SeesAllHolders(std::uint64_t born_ns);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_OTHER_HOLDERS_H_
