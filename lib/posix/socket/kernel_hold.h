#ifndef RCSOCK_LIB_POSIX_SOCKET_KERNEL_HOLD_H_
#define RCSOCK_LIB_POSIX_SOCKET_KERNEL_HOLD_H_

#include <poll.h>
#include <sys/select.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rcsock::posix {

class Sock;

// A thread holds this while it waits in the kernel for streams that are on TCP.
// They stay on TCP until it returns.  The object belongs to that thread.
class KernelHold {
 public:
  KernelHold() = default;
  ~KernelHold() { Release(); }
  KernelHold(const KernelHold&) = delete;
  KernelHold& operator=(const KernelHold&) = delete;
  // Makes room for `count` streams.  Returns false if there is no memory.
  bool Reserve(std::size_t count);
  // Returns false if the stream is not on TCP any more, or if the number names
  // another file.
  bool Enter(int fd, Sock* sock);
  bool EnterAll(const pollfd* fds, nfds_t count);
  bool EnterAll(int count, const fd_set* in, const fd_set* out,
                const fd_set* except);
  void Release();  // keeps errno

 private:
  struct Held {
    Sock* sock;
    std::uint32_t entered;
  };
  static constexpr std::size_t kInline = 64;
  Held few_[kInline];
  std::unique_ptr<Held[]> many_;
  Held* list_ = few_;
  std::size_t room_ = kInline;
  std::size_t count_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_KERNEL_HOLD_H_
