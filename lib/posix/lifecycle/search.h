#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_SEARCH_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_SEARCH_H_

namespace rcsock::posix {

// From now on streams may look for their peers, if the program's code allows it
// (raw_code.h).
void AllowSearches();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_SEARCH_H_
