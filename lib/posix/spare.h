#ifndef RCSOCK_LIB_POSIX_SPARE_H_
#define RCSOCK_LIB_POSIX_SPARE_H_

namespace rcsock::posix {

// One descriptor that nobody uses: whose number a connection gets that is
// closed where the process may open no other, so that what it owes is still
// delivered.

// Makes it, unless there is one.
void KeepSpare();
// Puts what `fd` names under its number, which is returned, and is the caller's
// now; -1: there is none.
int UseSpare(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SPARE_H_
