#ifndef RCSOCK_LIB_POSIX_SOCKET_LOOKUP_H_
#define RCSOCK_LIB_POSIX_SOCKET_LOOKUP_H_

#include <cstdint>

#include "lib/posix/fd/file.h"
#include "lib/posix/socket/sock.h"

// Which stream a number names.
namespace rcsock::posix {

// LookupSock() for an entry that is not plainly a stream.
[[gnu::noinline]] Sock* SettledSock(int fd);

// Lookup() with one look at the kind.
inline Sock* SockIn(std::uintptr_t entry, int fd) {
  File* file = FileIn(entry);
  if (file == nullptr) return nullptr;
  return __builtin_expect(file->kind == FileKind::kSock, 1)
             ? static_cast<Sock*>(file)
             : SettledSock(fd);
}
inline Sock* LookupSock(int fd) { return SockIn(WholeEntry(fd), fd); }

// Returns the stream that the number names for the process whose memory the
// child borrows, or null.
Sock* OwnersSock(int fd);

// As the table's Bind, with what the table asks of streams.
void Bind(int fd, Sock* sock);

// Called before the stream gets the number 0, 1 or 2.  The stdin, stdout and
// stderr of libc use these numbers by calls inside libc.  The room of the hooks
// gives its own function at start.  Until then the stream stays on TCP for
// good.
using BeforeStandard = void (*)(Sock* sock);
void SetBeforeStandard(BeforeStandard call);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_LOOKUP_H_
