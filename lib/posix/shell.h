#ifndef RCSOCK_LIB_POSIX_SHELL_H_
#define RCSOCK_LIB_POSIX_SHELL_H_

namespace rcsock::posix {

// What system() does, with an environment of its own: the variable that it
// takes it from is all threads'.
int SystemWith(const char* command, char* const environment[]);

// Around fork.
void ShellForkLock();
void ShellForkUnlock();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHELL_H_
