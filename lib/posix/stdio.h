#ifndef RCSOCK_LIB_POSIX_STDIO_H_
#define RCSOCK_LIB_POSIX_STDIO_H_

namespace rcsock::posix {

class Sock;

// `sock` is about to have the number `to`.  stdin, stdout and stderr use 0, 1
// and 2 without an fdopen() that could be seen, by calls inside libc: these
// come to the hooks from now on, or the stream stays on TCP for good.
void BeforeStandardNumber(Sock* sock, int to);
// dup2() and dup3() are about to put `sock` (or null) onto `to`.  A FILE may
// have any number that is open, and goes on with what is there now.
void BeforeReplacing(Sock* sock, int to);
// Whether the calls that libc makes for a FILE of fdopen(, `mode`) come to the
// hooks from now on.  (Not those that are no cancellation points, `c`, as the
// hooks' are; nor, to be safe, where it asks for a map, `m`.)
bool FollowsFileOf(const char* mode);
// Another thread of the parent may have been about that.  (If it was half done,
// what it has not finished is not what it is looked for: TCP.)
void StdioForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_STDIO_H_
