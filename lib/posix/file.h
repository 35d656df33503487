#ifndef RCSOCK_LIB_POSIX_FILE_H_
#define RCSOCK_LIB_POSIX_FILE_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

// kBetween: in the table alone, where a number is that the kernel is closing at
// this moment.
enum class FileKind : std::uint8_t { kSock, kEpoll, kBetween };

// An open description that rcsock follows.  The objects come from pools and are
// never given back to the heap, so a pointer read from the table stays readable
// although another thread closes the descriptor meanwhile; what it names is
// checked under the object's own latch.
struct alignas(16) File {
  constexpr explicit File(FileKind k) : kind(k) {}
  const FileKind kind;
  // Numbers of this process that name it; 0: in the pool or closing.
  std::atomic<int> fds{0};
};

// Descriptors above this are never followed, so they stay on TCP.  (The table
// is zero pages until touched.)
constexpr int kMaxFds = 1 << 20;
// A file; kClaimed beside it: somebody is closing the number, which is good
// until he has.  kLeft: he has, where the file has other numbers, seen to it
// that it goes by another one.  kHeld: somebody makes another number of it, and
// it is not closed before he has (HeldNumber).  kLaneMark: it is a stream that
// was on a lane in shared memory when this was noted, and has no other of these
// beside it.  A hint: such a call finds what it needs without a look at the
// line that says what the file is (Sock::QuickRecv knows whether it is still
// true).
//
// While an entry names a file, the file is in no pool: whoever closes a number
// keeps it until he has taken it out of here.  So who has found it here, and
// then asks again with a latch of the file's held, knows that it is what the
// number names until he lets go of the latch; who has not asked again may hold
// the latch of what is another connection by now.
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

// To be compared or looked at by its kind.
inline File* Entry(int fd) { return FileIn(WholeEntry(fd)); }

// Where that stands; null: nowhere.
inline const void* TablePlace(int fd) {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMaxFds)
             ? &fd_table[fd]
             : nullptr;
}

// What the number names when the kernel is done with it.
[[gnu::noinline]] File* Settled(int fd);

// Not with a latch held: it may wait for who closes the number.
inline File* Lookup(int fd) {
  File* file = Entry(fd);
  return __builtin_expect(file != nullptr && file->kind == FileKind::kBetween,
                          0)
             ? Settled(fd)
             : file;
}

// What it names for the caller, for those that look at all numbers: waits for
// nobody, and finds nothing where the kernel is not done.
[[gnu::noinline]] File* NamedInBetween(int fd);
inline File* Named(int fd) {
  File* file = Entry(fd);
  return __builtin_expect(file != nullptr && file->kind == FileKind::kBetween,
                          0)
             ? NamedInBetween(fd)
             : file;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FILE_H_
