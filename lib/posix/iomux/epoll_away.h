#ifndef RCSOCK_LIB_POSIX_IOMUX_EPOLL_AWAY_H_
#define RCSOCK_LIB_POSIX_IOMUX_EPOLL_AWAY_H_

namespace rcsock::posix {

// In a child of fork: no conductor looks at the sets of absent threads.
void AwayForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_EPOLL_AWAY_H_
