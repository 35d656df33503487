#ifndef RCSOCK_TESTS_POSIX_HOSTILE_VICTIM_H_
#define RCSOCK_TESTS_POSIX_HOSTILE_VICTIM_H_

#include <string>

// The processes of hostile_peer under the preload: they know sockets, and
// nothing of rcsock.  `orders` and `report` are pipes from and to the test.
namespace hostile {

// An echo server, by threads or by epoll, that tells its port, and 'e' for each
// connection that has ended.  Orders: 'c' and a port: connect to it; else: end.
int Victim(const std::string& mode, int orders, int report);
// Its other client, for whom nothing may change: for each 'g' round trips of
// one long connection and a new one, then 'k'.
int Honest(int port, int orders, int report);

}  // namespace hostile

#endif  // RCSOCK_TESTS_POSIX_HOSTILE_VICTIM_H_
