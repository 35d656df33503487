#ifndef RCSOCK_LIB_POSIX_UNREAD_H_
#define RCSOCK_LIB_POSIX_UNREAD_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/unique_fd.h"

namespace rcsock::posix {

// Bytes of a connection that were read from TCP ahead of the application and
// can't be put back: the front of its receive queue, in memory that processes
// share as they share the kernel's queue, across fork and exec.
//
// Written once, before anybody else can see it.  A reader copies and then moves
// the head by one compare-and-swap, so each byte is taken once, and whoever
// dies, at whatever instruction, has taken a byte or has not.
class Unread {
 public:
  // Most bytes in one; more than the engine ever reads ahead.
  static constexpr std::size_t kMost = 256u << 20;

  Unread() = default;
  ~Unread() { Close(); }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;

  // `socket`: the inode number of the connection that they belong to.
  // `came_ns`: by CLOCK_REALTIME; 0: not known.  `error`: what comes behind
  // them, which the kernel has told already; 0: nothing.
  bool Make(const void* bytes, std::size_t count, std::uint64_t socket,
            std::uint64_t came_ns, int error);
  // One that another program has made.  False (and `fd` left open): it is not
  // what it should be.  Else `fd` is this object's.
  bool Open(int fd);
  void Close();
  // The connection that those of another program say they belong to; 0: none.
  static std::uint64_t Claimed(int fd);

  bool open() const { return map_ != nullptr; }
  std::uint64_t socket() const { return socket_; }
  // -1: made without a descriptor to spare; then only fork can share it.
  int fd() const { return fd_.get(); }
  std::size_t size() const;
  std::uint64_t came_ns() const;
  // The error is told once, by whoever shares them.
  bool Failed() const;
  int TakeError();
  void KeepError(int error);
  // Copies out what there is; with `peek` it stays.  Null `iov`: forgets up to
  // `total`.
  std::size_t Take(const iovec* iov, int count, std::size_t total, bool peek);

 private:
  struct Header;
  Header* header() const { return static_cast<Header*>(map_); }

  void* map_ = nullptr;
  std::size_t mapped_ = 0;
  std::uint64_t length_ = 0;  // read once: the other processes can write there
  std::uint64_t socket_ = 0;
  base::UniqueFd fd_;
};

// How many streams of this process have some: almost always none, so that the
// calls that wait ask nothing more.
extern std::atomic<int> unread_streams;
inline bool AnyUnread() {
  return __builtin_expect(unread_streams.load(std::memory_order_relaxed) != 0,
                          0);
}

// The inode number of the socket behind `fd`; 0: none.
std::uint64_t SocketInode(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_UNREAD_H_
