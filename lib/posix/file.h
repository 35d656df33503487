#ifndef RCSOCK_LIB_POSIX_FILE_H_
#define RCSOCK_LIB_POSIX_FILE_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

enum class FileKind : std::uint8_t { kSock, kEpoll };

// An open description that rcsock follows.  The objects come from pools and are
// never given back to the heap, so a pointer read from the table stays readable
// although another thread closes the descriptor meanwhile; what it names is
// checked under the object's own latch.
struct File {
  explicit File(FileKind k) : kind(k) {}
  const FileKind kind;
  // Numbers of this process that name it; 0: in the pool or closing.
  std::atomic<int> fds{0};
};

// Descriptors above this are never followed, so they stay on TCP.  (The table
// is zero pages until touched.)
constexpr int kMaxFds = 1 << 20;
extern std::atomic<File*> fd_table[kMaxFds];

extern std::atomic<int> fd_high;  // no followed descriptor is above this

inline File* Lookup(int fd) {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMaxFds)
             ? fd_table[fd].load(std::memory_order_acquire)
             : nullptr;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FILE_H_
