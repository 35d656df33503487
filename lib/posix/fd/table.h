#ifndef RCSOCK_LIB_POSIX_FD_TABLE_H_
#define RCSOCK_LIB_POSIX_FD_TABLE_H_

#include <cstdint>

#include "lib/posix/fd/file.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

struct Successor;

// What the table asks of a kind of file when a number comes or goes.  The rooms
// of the kinds pass it to Bind, so that this room needs none of them.  These
// are cold.  A file has no virtual functions: a pointer more would move its
// fields.
struct FileOps {
  // The file is about to get the number `fd`: its first, by Bind, or a copy.
  void (*number)(File* file, int fd, bool first);
  // The file cannot come into the table.  Gives it back.
  void (*refuse)(File* file);
  // `fd` was closed past rcsock.  Calls ClearEntry(fd), and takes the number
  // from the file.  `claimed`: the thread that is closing the number takes it
  // away.
  void (*evict)(File* file, int fd, bool claimed);
  // A thread is about to claim a number of the file.  No signal is put off, so
  // this may wait for the peer.
  void (*before_close)(File* file);
  // Closes the claimed number by CloseNumber.  `last`: the file has no other,
  // and fds is 0.
  int (*close)(File* file, bool last, int fd, const Successor& next);
  // Ends the file, whose only number is `fd`, and clears the entry.  The caller
  // then has the kernel close the number, in the same critical section: deep in
  // calls, that would take longer (base/direct.h).  Requires a critical
  // section, and `lone`: base::Lone(), and that the number is not claimed;
  // else: that it is claimed, and `fds` 0.  Returns false, and has done nothing
  // that `close` does not do again, if the file ends in another way.  Null: so
  // it always does.
  bool (*end)(File* file, int fd, bool lone);
  // In the child of fork, where `fd` is gone.  The file has `other`.
  void (*renumber)(File* file, int fd, int other);
  // Returns whether the file may have kLaneMark.
  bool (*on_lane)(const File* file);
  // Reveals the hidden file of a number.  Returns what the number names then.
  File* (*reveal)(int fd);
};
// From now on `fd`, just made by the kernel, names `file`.  If the table still
// names a file at `fd`, that file's number was closed past rcsock, and the
// entry is dropped.  `ops` are those of all files of the kind, hidden or not,
// and stay valid.
void Bind(int fd, File* file, const FileOps& ops);
// Sets or clears kLaneMark for `fd`, a number of `file`: whether the stream is
// on a lane in shared memory.
void NoteOnLane(int fd, const File* file, bool on);
// Drops a stale entry of a number that the kernel has just given out.
void EvictStale(int fd);
inline void Evict(int fd) {
  if (Entry(fd) != nullptr) [[unlikely]]
    EvictStale(fd);
}
// In a child of vfork that is about to close the number, or to put something
// else there.  From now on the number names nothing of rcsock's for the child.
void Lend(int fd);
// What the number names for the process whose memory the child borrows.
File* OwnersFile(int fd);
// A number that is being duplicated.  While this lives, no thread closes the
// number or puts something else there.  So the kernel's copy is of the file
// that the table names.  Otherwise another thread could close the number, and
// the stream with it, between the kernel's copy and the table's.  Holds nothing
// if the number is not followed.  The holder waits for no claim, and runs no
// handler.
class HeldNumber {
 public:
  explicit HeldNumber(int fd);
  ~HeldNumber() { Release(); }
  HeldNumber(const HeldNumber&) = delete;
  HeldNumber& operator=(const HeldNumber&) = delete;
  void Release();
  // What the number names.  Null: it is not followed.
  File* file() const { return file_; }

 private:
  const Critical critical_;
  const int fd_;
  File* file_ = nullptr;
  bool marked_ = false;  // the number had kLaneMark
};
// What takes the place of a number that is closed (dup2, dup3).
struct Successor {
  int from = -1;  // the kernel's number; -1: nothing follows
  int flags = 0;
  HeldNumber* held = nullptr;  // `from`, if it is followed
};
// close(): the descriptor goes, and with the last descriptor its file.  Code
// outside this room calls CloseAny and ReplaceAny, and not this and ReplaceFd.
int CloseFd(int fd);
// dup3(from, fd, flags) of two different numbers.  The number is never free
// meanwhile, since another thread's new descriptor could take it.  Not for a
// child of vfork.
int ReplaceFd(int fd, int from, int flags);
// Closes a claimed number in the kernel and in the table.  `held`: meanwhile no
// thread finds the number on either side; look-ups wait.
int CloseNumber(int fd, const Successor& next, bool held);
// `fd` is being closed and is the last number, but `file` lives on.  From now
// on the table names it by `hidden`, a number of rcsock's own.
void GoOnBy(int hidden, File* file);
// Marks `fd`, which is being closed, so that the file no longer goes by it
// (kLeft).  Returns another number of the file, or -1 if there is none.  The
// caller holds the latch by which the file knows its number.  So a thread that
// closes that other number later finds that the file goes by it.
int LeaveNumber(int fd, const File* file);
// LeaveNumber for a file that has another number, which may not be in the table
// yet.
int LeaveNumberForAny(int fd, const File* file);
// From now on `fd` names nothing.  For FileOps::evict.
void ClearEntry(int fd);
// From now on `to` also names what `from` names.  `to` is 0, or a copy's
// number.
void CopyHeld(const HeldNumber& from, int to);
void CopyFd(int from, int to);
// Around fork.
void TableForkLock();
void TableForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FD_TABLE_H_
