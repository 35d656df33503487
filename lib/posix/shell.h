#ifndef RCSOCK_LIB_POSIX_SHELL_H_
#define RCSOCK_LIB_POSIX_SHELL_H_

namespace rcsock::posix {

// What system() does, with an environment of its own: the variable that it
// takes it from is all threads'.
int SystemWith(const char* command, char* const environment[]);

// The program's `environ`, also while another thread's popen has changed it.
char** ProgramEnvironment();

// What `environ` is while popen() runs: it takes it from the variable.  One at
// a time, so that what is put back is the program's, and that nobody's command
// finds another's.  (glibc's popen has a lock of its own for that long.)  Other
// threads may look at it then, and after: so it is never freed, but the next
// popen takes the same again.  `with` null: as it is.
//
// A handler that has interrupted popen() may call it too: the latch is its
// thread's then, and the one popen is over before the other goes on.
class PopenEnvironment {
 public:
  explicit PopenEnvironment(char* const with[]);
  ~PopenEnvironment();
  PopenEnvironment(const PopenEnvironment&) = delete;
  PopenEnvironment& operator=(const PopenEnvironment&) = delete;

 private:
  bool within_ = false;   // another one of this thread
  char** own_ = nullptr;  // the program's
  struct {
    char** variable = nullptr;
    char** before = nullptr;
    char** last = nullptr;
    bool changes = false;
  } found_;  // the other's
};

// Around fork.
void ShellForkLock();
void ShellForkUnlock(bool child);
// In the child, whether it was locked or not.
void ShellForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHELL_H_
