#ifndef RCSOCK_LIB_POSIX_FD_FILE_H_
#define RCSOCK_LIB_POSIX_FD_FILE_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

// kBetween is in the table alone, at a number that the kernel is closing at
// this moment.  A stream or set of a child of fork is hidden until the child
// first uses it (hidden.h).
enum class FileKind : std::uint8_t {
  kSock,
  kEpoll,
  kBetween,
  kHiddenSock,
  kHiddenSet
};

// An open description that rcsock follows.  The objects come from pools, and
// never go back to the heap.  So a pointer from the table stays readable while
// another thread closes the descriptor.  A thread checks with the object's
// latch held whether the number still names the object (I-LIFE-1).
struct alignas(16) File {
  constexpr explicit File(FileKind k) : kind(k) {}
  bool Hidden() const { return kind > FileKind::kBetween; }
  // Whether it is a stream, hidden or not.
  bool IsSock() const {
    return kind == FileKind::kSock || kind == FileKind::kHiddenSock;
  }
  // Only a child of fork changes it (hidden.cc).
  FileKind kind;
  // How many numbers of this process name the file; 0: in the pool, or closing.
  std::atomic<int> fds{0};
};

// Descriptors above this are never followed, and stay on TCP.  The table is
// zero pages until it is touched.
constexpr int kMaxFds = 1 << 20;
// An entry is a file, and marks:
// - kClaimed: a thread is closing the number, which is valid until the close is
//   done.
// - kLeft: a closing thread has made a file with other numbers go by another
//   number.
// - kHeld: a thread is duplicating the number.  The number is not closed before
//   the thread has finished (HeldNumber).
// - kLaneMark: the file is a stream that was on a lane in shared memory when
//   the mark was set.  The entry has no other mark.  The mark is a hint: a call
//   that finds it need not read the cache line that says what the file is.
//   Sock::QuickRecv knows whether the hint still holds.
//
// While an entry names a file, the file is in no pool: the closing thread keeps
// the file until the entry is gone.  A thread that finds a file here takes a
// latch of the file, and reads the entry again.  If the entry still names the
// file, it does so until the thread releases the latch.  A thread that does not
// read again may hold the latch of another connection.
extern std::atomic<std::uintptr_t> fd_table[kMaxFds];
constexpr std::uintptr_t kClaimed = 1;
constexpr std::uintptr_t kLaneMark = 2;
constexpr std::uintptr_t kLeft = 4;
constexpr std::uintptr_t kHeld = 8;
inline File* FileIn(std::uintptr_t entry) {
  return reinterpret_cast<File*>(entry &
                                 ~(kClaimed | kLaneMark | kLeft | kHeld));
}

extern std::atomic<int> fd_high;  // no followed descriptor is above this

// What stands there, with its marks; 0: nothing.
inline std::uintptr_t WholeEntry(int fd) {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMaxFds)
             ? fd_table[fd].load(std::memory_order_acquire)
             : 0;
}

// For comparison, or to look at its kind.
inline File* Entry(int fd) { return FileIn(WholeEntry(fd)); }

// The address of that entry; null: the table has none for the number.
inline const void* TablePlace(int fd) {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMaxFds)
             ? &fd_table[fd]
             : nullptr;
}

// What the number names when the kernel is done with it.
[[gnu::noinline]] File* Settled(int fd);

// Returns what the number names.  May wait for a closing thread, or for the
// owner of a hidden stream, so the caller holds no latch.
inline File* Lookup(int fd) {
  File* file = Entry(fd);
  return __builtin_expect(file != nullptr && file->kind >= FileKind::kBetween,
                          0)
             ? Settled(fd)
             : file;
}

// Returns what the number names for the caller.  For threads that look at all
// numbers: does not wait, and finds no hidden file, and nothing at a number
// that the kernel is still closing.
[[gnu::noinline]] File* NamedInBetween(int fd);
inline File* Named(int fd) {
  File* file = Entry(fd);
  return __builtin_expect(file != nullptr && file->kind >= FileKind::kBetween,
                          0)
             ? NamedInBetween(fd)
             : file;
}

// As Named, and finds hidden files, too.
inline File* NamedEvenHidden(int fd) {
  File* const file = Entry(fd);
  return file != nullptr && file->Hidden() ? file : Named(fd);
}
// As Lookup, for a number that is being closed: a hidden file stays hidden.
inline File* LookupToClose(int fd) {
  File* const file = Entry(fd);
  return file != nullptr && file->Hidden() ? file : Lookup(fd);
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FD_FILE_H_
