#ifndef RCSOCK_LIB_POSIX_EPOLL_AWAY_H_
#define RCSOCK_LIB_POSIX_EPOLL_AWAY_H_

namespace rcsock::posix {

// In a child of fork: nobody looks at the sets of threads that are elsewhere.
void AwayForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_EPOLL_AWAY_H_
