#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_SHELL_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_SHELL_H_

namespace rcsock::posix {

// system() with an environment of its own.  libc's system() takes `environ`,
// which belongs to all threads.
int SystemWith(const char* command, char* const environment[]);

// The program's `environ`, also while another thread's popen has changed it.
char** ProgramEnvironment();

// Sets `environ` while popen() runs, which takes its environment from there.
// One thread at a time does this.  So the list that is put back is the
// program's, and no command finds another command's environment.  glibc's popen
// has a lock of its own for the like.
//
// Other threads may read a list during the popen and after it.  So a list is
// never freed, and the next popen uses it again.  `with` null: `environ` stays.
//
// A handler that has interrupted popen() may call popen() too.  Its thread has
// the latch already, and the inner popen ends before the outer goes on.
class PopenEnvironment {
 public:
  explicit PopenEnvironment(char* const with[]);
  ~PopenEnvironment();
  PopenEnvironment(const PopenEnvironment&) = delete;
  PopenEnvironment& operator=(const PopenEnvironment&) = delete;

 private:
  bool within_ = false;   // within another popen of this thread
  char** own_ = nullptr;  // the program's list
  struct {
    char** variable = nullptr;
    char** before = nullptr;
    char** last = nullptr;
    bool changes = false;
  } found_;  // the outer popen's state
};

// Around fork.
void ShellForkLock();
void ShellForkUnlock(bool child);
// In the child, whether the latch was held or not.
void ShellForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_SHELL_H_
