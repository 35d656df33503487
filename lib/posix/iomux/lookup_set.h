#ifndef RCSOCK_LIB_POSIX_IOMUX_LOOKUP_SET_H_
#define RCSOCK_LIB_POSIX_IOMUX_LOOKUP_SET_H_

#include "lib/posix/fd/file.h"
#include "lib/posix/iomux/epoll.h"

// Which epoll set a number names.
namespace rcsock::posix {

// LookupSet() for an entry that is not plainly a set.
[[gnu::noinline]] EpollSet* SettledSet(int fd);

inline EpollSet* LookupSet(int fd) {
  File* file = Entry(fd);
  if (file == nullptr) return nullptr;
  return __builtin_expect(file->kind == FileKind::kEpoll, 1)
             ? static_cast<EpollSet*>(file)
             : SettledSet(fd);
}

// As the table's Bind, with what it asks of sets.
void Bind(int fd, EpollSet* set);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_LOOKUP_SET_H_
