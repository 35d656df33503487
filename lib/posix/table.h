#ifndef RCSOCK_LIB_POSIX_TABLE_H_
#define RCSOCK_LIB_POSIX_TABLE_H_

#include <sys/socket.h>

#include "lib/posix/epoll.h"
#include "lib/posix/file.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

// The same for what is no stream, or set, at first sight.
[[gnu::noinline]] Sock* SettledSock(int fd);
[[gnu::noinline]] EpollSet* SettledSet(int fd);

// Lookup() by one look at the kind.
inline Sock* SockIn(std::uintptr_t entry, int fd) {
  File* file = FileIn(entry);
  if (file == nullptr) return nullptr;
  return __builtin_expect(file->kind == FileKind::kSock, 1)
             ? static_cast<Sock*>(file)
             : SettledSock(fd);
}
inline Sock* LookupSock(int fd) { return SockIn(WholeEntry(fd), fd); }

inline EpollSet* LookupSet(int fd) {
  File* file = Entry(fd);
  if (file == nullptr) return nullptr;
  return __builtin_expect(file->kind == FileKind::kEpoll, 1)
             ? static_cast<EpollSet*>(file)
             : SettledSet(fd);
}

// Descriptor `fd`, just made by the kernel, names `file` from now on; whatever
// the table still had there was closed past us and is dropped.
void Bind(int fd, File* file);
// The number is `sock`'s, which is (not) on a lane in shared memory: kLaneMark.
void NoteOnLane(int fd, Sock* sock, bool on);
// A stale entry of a number that the kernel has just given out.
void Evict(int fd);
// In a child of vfork, which is about to close the number or to put something
// else there: from now on it names nothing of ours for the child.
void Lend(int fd);
// What the number names for the process whose memory the child has.
Sock* OwnersSock(int fd);
// A number of which another one is made: as long as this lives nobody closes
// it, or puts something else there, so that what the kernel has copied is what
// the table says.  (Without it the last of two numbers could be closed, and the
// stream with it, between the kernel's copy and the table's.)  Nothing, where
// the number is not followed.
//
// Who has one waits for nobody's claim, and runs no handler.
class HeldNumber {
 public:
  explicit HeldNumber(int fd);
  ~HeldNumber() { Release(); }
  HeldNumber(const HeldNumber&) = delete;
  HeldNumber& operator=(const HeldNumber&) = delete;
  void Release();
  // What it names; null: it is not followed.
  File* file() const { return file_; }

 private:
  const Critical critical_;
  const int fd_;
  File* file_ = nullptr;
  bool marked_ = false;  // it had kLaneMark
};
// What takes the place of a number that is closed: dup2, dup3.
struct Successor {
  int from = -1;  // the kernel's; -1: nothing does
  int flags = 0;
  HeldNumber* held = nullptr;  // `from`, where it is followed
};
// close(): the descriptor goes, and with the last one what it names.
int CloseFd(int fd);
// dup3(from, fd, flags), of two numbers that differ: the number is never free,
// for another thread's new descriptor may have it then.  (Not in a child of
// vfork.)
int ReplaceFd(int fd, int from, int flags);
// The kernel's part of that, and the table's, of a number that is claimed.
// `held`: nobody finds the number meanwhile, on neither side; who looks for it
// waits.
int CloseNumber(int fd, const Successor& next, bool held);
// `fd`, which is being closed and is the last, is not: `file` goes on by
// `hidden`, a number of ours that the table has from now on.
void GoOnBy(int hidden, File* file);
// `fd`, which is being closed, is left for another number of the file's; -1:
// none.  With the latch by which the file knows its number: who closes that one
// asks later whether it is the file's.
int LeaveNumber(int fd, const File* file);
// The same where there is another, which may not be in the table yet.
int LeaveNumberForAny(int fd, const File* file);
// `to` is another number for what `from` names (0, or a copy's number).
void CopyHeld(const HeldNumber& from, int to);
void CopyFd(int from, int to);
// Around fork.
void TableForkLock();
void TableForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_TABLE_H_
