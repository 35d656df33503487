#ifndef RCSOCK_LIB_POSIX_TABLE_H_
#define RCSOCK_LIB_POSIX_TABLE_H_

#include <sys/socket.h>

#include "lib/posix/epoll.h"
#include "lib/posix/file.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

inline Sock* LookupSock(int fd) {
  File* file = Lookup(fd);
  return file != nullptr && file->kind == FileKind::kSock
             ? static_cast<Sock*>(file)
             : nullptr;
}

inline EpollSet* LookupSet(int fd) {
  File* file = Lookup(fd);
  return file != nullptr && file->kind == FileKind::kEpoll
             ? static_cast<EpollSet*>(file)
             : nullptr;
}

// Descriptor `fd`, just made by the kernel, names `file` from now on; whatever
// the table still had there was closed past us and is dropped.
void Bind(int fd, File* file);
// A stale entry of a number that the kernel has just given out.
void Evict(int fd);
// close(): the descriptor goes, and with the last one what it names.  With
// `from` it is dup3(from, fd, flags): the number is never free, for another
// thread's new descriptor may have it then.
int CloseFd(int fd, int from = -1, int flags = 0);
// The kernel's part of that.
int CloseNumber(int fd, int from, int flags);
// `to` is another number for what `from` names (0, or a copy's number).
void CopyFd(int from, int to);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_TABLE_H_
