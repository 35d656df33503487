#ifndef RCSOCK_LIB_POSIX_LOOKUP_H_
#define RCSOCK_LIB_POSIX_LOOKUP_H_

#include <cstdint>

#include "lib/posix/epoll.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/sock.h"

// Which stream or set a number names.
namespace rcsock::posix {

// LookupSock() and LookupSet() for an entry that is not plainly a stream or a
// set.
[[gnu::noinline]] Sock* SettledSock(int fd);
[[gnu::noinline]] EpollSet* SettledSet(int fd);

// Lookup() with one look at the kind.
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

// The stream that the number names for the process whose memory the child
// borrows, or null.
Sock* OwnersSock(int fd);

// As the table's Bind, with what it asks of streams and sets.
void Bind(int fd, Sock* sock);
void Bind(int fd, EpollSet* set);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LOOKUP_H_
