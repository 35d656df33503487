#ifndef RCSOCK_LIB_POSIX_SHARING_UNREAD_H_
#define RCSOCK_LIB_POSIX_SHARING_UNREAD_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/unique_fd.h"

namespace rcsock::posix {

// Bytes of a connection that were read from TCP ahead of the application, and
// cannot be put back.  They are the front of the receive queue.  Their memory
// is shared by processes as the kernel's queue is, across fork and exec.
//
// They are written once, before another thread or process can see them.  A
// reader copies, and then moves the head by one compare-and-swap.  So each byte
// is taken once.  A process that dies, at any instruction, has taken a byte or
// has not.
class Unread {
 public:
  // The most bytes in one object; more than the engine ever reads ahead.
  static constexpr std::size_t kMost = 256u << 20;

  Unread() = default;
  ~Unread() { Close(); }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;

  // Copies the bytes of the pieces, in their order.
  // `socket`: the inode number of their connection.  `came_ns`: by
  // CLOCK_REALTIME; 0: not known.  `error`: an error that comes behind them,
  // and that the kernel has reported already; 0: none.
  bool Make(const iovec* pieces, int count, std::uint64_t socket,
            std::uint64_t came_ns, int error);
  // Opens an object that another program has made.  False: it is not valid, and
  // `fd` stays open.  Otherwise `fd` is this object's.
  bool Open(int fd);
  void Close();
  // The connection that another program's object claims to belong to; 0: none.
  static std::uint64_t Claimed(int fd);

  bool open() const { return map_ != nullptr; }
  std::uint64_t socket() const { return socket_; }
  // -1: no descriptor was free, and only fork can share the object.
  int fd() const { return fd_.get(); }
  std::size_t size() const;
  std::uint64_t came_ns() const;
  // The processes that share the object report the error once.
  bool Failed() const;
  int TakeError();
  void KeepError(int error);
  // Copies bytes out.  With `peek` they stay.  Null `iov`: drops up to `total`
  // bytes.
  std::size_t Take(const iovec* iov, int count, std::size_t total, bool peek);

 private:
  struct Header;
  Header* header() const { return static_cast<Header*>(map_); }

  void* map_ = nullptr;
  std::size_t mapped_ = 0;
  std::uint64_t length_ = 0;  // read once: other processes write there
  std::uint64_t socket_ = 0;
  base::UniqueFd fd_;
};

// How many streams of this process have unread bytes.  The count is almost
// always 0, and then the calls that wait ask nothing more.
extern std::atomic<int> unread_streams;
inline bool AnyUnread() {
  return __builtin_expect(unread_streams.load(std::memory_order_relaxed) != 0,
                          0);
}

// The inode number of the socket behind `fd`; 0: none.
std::uint64_t SocketInode(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_UNREAD_H_
