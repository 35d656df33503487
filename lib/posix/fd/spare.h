#ifndef RCSOCK_LIB_POSIX_FD_SPARE_H_
#define RCSOCK_LIB_POSIX_FD_SPARE_H_

namespace rcsock::posix {

// A few spare descriptors.  If a connection is closed where the process can
// open no other number, the connection gets the number of a spare.  So its last
// bytes are still delivered.

// Makes the spares that are missing.
void KeepSpares();
// Puts what `fd` names at the number of a spare.  Returns that number, which is
// the caller's now; -1: there is no spare.
int UseSpare(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FD_SPARE_H_
