// What libc's stdio does to a stream: at 0, 1 or 2, by fdopen(), and where
// dup2() has put the stream under a FILE.
//
// stdio reads and writes by calls of its own, which cannot be interposed.
// Bytes that it writes to an anchor under a lane would end the connection.  But
// stdio calls through two tables of functions that libc exports, for narrow and
// for wide FILEs.  A table that holds libc's exported functions is known to be
// right.  Then rcsock puts its own functions in their places.  For a stream
// they call the hooks, and for all else libc's functions.  rcsock does this
// when a stream first gets number 0, 1 or 2, or a FILE.  If it is impossible,
// the stream stays on TCP.
//
// Nothing else in a FILE moves bytes of its descriptor.  libc's functions for
// seeking, for the size and for a terminal ask the anchor, which answers as a
// plain connection does.  The buffer, the orientation, the lock and pushed-back
// bytes belong to the FILE alone.  A FILE of rcsock's own, by fopencookie,
// would not do: its fileno() would be -1.

#include "lib/posix/hooks/stdio.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "lib/base/latch.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/sharing/unread.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

extern "C" {
// Weak: another libc has none of them.
[[gnu::weak]] extern void* _IO_file_jumps[];
[[gnu::weak]] extern void* _IO_wfile_jumps[];
[[gnu::weak]] ssize_t _IO_file_read(FILE* file, void* to, ssize_t length);
[[gnu::weak]] ssize_t _IO_file_write(FILE* file, const void* from,
                                     ssize_t length);
[[gnu::weak]] int _IO_file_close(FILE* file);
}

namespace rcsock::posix {
namespace {

// The number by which the hooks know what the FILE's number names, or -1.
int Followed(const FILE* file) {
  const int fd = file->_fileno;
  Sock* sock = LookupSock(fd);
  // perror() writes to a copy of 2, made past the hooks.
  const int known = sock != nullptr ? fd : STDERR_FILENO;
  if (sock == nullptr) {
    if (Entry(fd) != nullptr) return -1;
    sock = LookupSock(STDERR_FILENO);
    if (sock == nullptr) return -1;
  }
  // libc may have closed the number past the hooks, or put another file there,
  // as in daemon().
  const int saved = errno;
  const std::uint64_t inode = SocketInode(fd);
  const bool same = inode != 0 && inode == (sock->anchor().inode() != 0
                                                ? sock->anchor().inode()
                                                : SocketInode(known));
  errno = saved;
  return same ? known : -1;
}

ssize_t Read(FILE* file, void* to, ssize_t length) {
  const int fd = Followed(file);
  if (fd < 0) return _IO_file_read(file, to, length);
  return hook::read(fd, to, static_cast<std::size_t>(length));
}

// As libc's.
ssize_t Write(FILE* file, const void* from, ssize_t length) {
  const int fd = Followed(file);
  if (fd < 0) return _IO_file_write(file, from, length);
  ssize_t done = 0;
  while (done < length) {
    const ssize_t n = hook::write(fd, static_cast<const char*>(from) + done,
                                  static_cast<std::size_t>(length - done));
    if (n < 0) {
      file->_flags |= _IO_ERR_SEEN;
      break;
    }
    done += n;
  }
  if (file->_offset >= 0) file->_offset += done;
  return done;
}

int Close(FILE* file) {
  const int fd = Followed(file);
  return fd < 0 || fd != file->_fileno ? _IO_file_close(file) : hook::close(fd);
}

// One of libc's tables.  Once the program is loaded, its memory is read-only.
class Table {
 public:
  explicit Table(void** table) : table_(table) {
    for (std::size_t i = 0; table != nullptr && i < kEntries; ++i) {
      if (table[i] == reinterpret_cast<void*>(&_IO_file_read)) read_ = i;
      if (table[i] == reinterpret_cast<void*>(&_IO_file_write)) write_ = i;
      if (table[i] == reinterpret_cast<void*>(&_IO_file_close)) close_ = i;
    }
  }
  // Whether all three are there.
  bool Known() const { return read_ != 0 && write_ != 0 && close_ != 0; }
  bool Replace() {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto from = reinterpret_cast<std::uintptr_t>(table_) & ~(page - 1);
    const auto to = reinterpret_cast<std::uintptr_t>(table_ + kEntries);
    auto* start = reinterpret_cast<void*>(from);
    if (::mprotect(start, to - from, PROT_READ | PROT_WRITE) != 0) return false;
    // Another thread may be about to call one of the old functions.  For a FILE
    // that is no stream, the old and the new function are equally good.
    Put(read_, reinterpret_cast<void*>(&Read));
    Put(write_, reinterpret_cast<void*>(&Write));
    Put(close_, reinterpret_cast<void*>(&Close));
    ::mprotect(start, to - from, PROT_READ);
    return true;
  }

 private:
  // Two words, then 19 functions, in every glibc since 2.1.
  static constexpr std::size_t kEntries = 21;

  void Put(std::size_t i, void* function) {
    __atomic_store_n(&table_[i], function, __ATOMIC_RELEASE);
  }

  void** table_;
  std::size_t read_ = 0;
  std::size_t write_ = 0;
  std::size_t close_ = 0;
};

enum class State : std::uint8_t { kUntried, kSeen, kUnseen };
constinit std::atomic<State> state{State::kUntried};
constinit base::Latch state_latch;

State Try() {
  if (OwnFace() != Face::kPreload || &_IO_file_read == nullptr ||
      &_IO_file_write == nullptr || &_IO_file_close == nullptr) {
    return State::kUnseen;
  }
  Table narrow(_IO_file_jumps);
  Table wide(_IO_wfile_jumps);
  const bool seen =
      narrow.Known() && wide.Known() && narrow.Replace() && wide.Replace();
  return seen ? State::kSeen : State::kUnseen;
}

// Whether stdio's calls come to the hooks.
bool Seen() {
  State now = state.load(std::memory_order_acquire);
  if (now != State::kUntried) return now == State::kSeen;
  Critical critical;
  const int saved = errno;
  state_latch.lock();
  now = state.load(std::memory_order_relaxed);
  if (now == State::kUntried) {
    now = Try();
    state.store(now, std::memory_order_release);
  }
  state_latch.unlock();
  errno = saved;
  return now == State::kSeen;
}

}  // namespace

void BeforeStandardNumber(Sock* sock) {
  // In a sandbox no stream leaves TCP, and rcsock makes no new call.
  if (ProcessPinned() == base::Reason::kSandboxed) return;
  if (!Seen()) sock->way_back().Pin(base::Reason::kPinnedFdopen);
}

void BeforeReplacing(Sock* sock, int to) {
  if (sock == nullptr) return;
  if (static_cast<unsigned>(to) <= 2) return BeforeStandardNumber(sock);
  if (ProcessPinned() == base::Reason::kSandboxed) return;
  // If stdio's calls are unseen, the stream stays where it is.  Hardly any open
  // number is a FILE's.
  if (::syscall(SYS_fcntl, to, F_GETFD) >= 0) Seen();
}

bool FollowsFileOf(const char* mode) {
  if (ProcessPinned() == base::Reason::kSandboxed) return true;
  return ::strpbrk(mode, "cm") == nullptr && Seen();
}

void StdioForkChild() { state_latch.Reset(); }

}  // namespace rcsock::posix
