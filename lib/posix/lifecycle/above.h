#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_ABOVE_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_ABOVE_H_

namespace rcsock::posix {

// What the room above has to do when the process forks, filters its system
// calls, or ends.  The room above passes its object to Set at start, so this
// room needs no header of that room.  Without an object, nothing is to be done.
class Above {
 public:
  // Takes the latches that come before all others, and releases them.  `child`:
  // in the child of fork.
  virtual void ForkLock();
  virtual void ForkUnlock(bool child);
  // In the child, without these latches.  ForkChild runs before the streams'
  // part, and ForkChildLast after it.
  virtual void ForkChild();
  virtual void ForkChildLast();
  // How many threads run that are not the program's.
  virtual int HelperThreads();
  // A filter is about to forbid what a lane needs.
  virtual void BeforeSandbox();

  static Above& Get();
  static void Set(Above* above);

 protected:
  ~Above() = default;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_ABOVE_H_
