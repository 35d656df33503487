#ifndef RCSOCK_LIB_POSIX_HOOKS_STDIO_H_
#define RCSOCK_LIB_POSIX_HOOKS_STDIO_H_

namespace rcsock::posix {

class Sock;

// Called before `sock` gets the number 0, 1 or 2. stdin, stdout and stderr use
// these by calls inside libc, without an fdopen() that could be seen.  From now
// on these calls come to the hooks, or the stream stays on TCP for good.
void BeforeStandardNumber(Sock* sock);
// Called before dup2() or dup3() puts `sock`, or null, onto `to`.  A FILE may
// have any open number, and then uses what is there.
void BeforeReplacing(Sock* sock, int to);
// Returns whether the calls that libc makes for a FILE of fdopen(, `mode`) come
// to the hooks from now on.  Returns false for a mode with `c`: libc's calls
// for such a FILE are no cancellation points, and the hooks' calls are.
// Returns false for a mode with `m`, which asks for a map, to be safe.
bool FollowsFileOf(const char* mode);
// In the child of fork.  Another thread of the parent may have been changing
// the tables.  What that thread has not done affects TCP alone.
void StdioForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_HOOKS_STDIO_H_
