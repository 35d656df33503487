#ifndef RCSOCK_LIB_POSIX_SPARE_H_
#define RCSOCK_LIB_POSIX_SPARE_H_

namespace rcsock::posix {

// A few descriptors that nobody uses: whose numbers connections get that are
// closed where the process may open no other, so that what they owe is still
// delivered.

// Makes those that there are not.
void KeepSpares();
// Puts what `fd` names under the number of one, which is returned, and is the
// caller's now; -1: there is none.
int UseSpare(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SPARE_H_
