#include "lib/posix/spare.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "lib/base/unique_fd.h"

namespace rcsock::posix {
namespace {

constinit std::atomic<int> spare{-1};

}  // namespace

void KeepSpare() {
  if (spare.load(std::memory_order_relaxed) >= 0) return;
  // Anything that keeps nothing else alive, in a child of fork too.
  const int fd = base::RelocateHigh(static_cast<int>(
      ::syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  int none = -1;
  if (fd >= 0 && !spare.compare_exchange_strong(none, fd)) base::CloseRaw(fd);
}

int UseSpare(int fd) {
  const int number = spare.exchange(-1);
  if (number < 0) return -1;
  // (The kernel closes what was there.)
  if (::syscall(SYS_dup3, fd, number, O_CLOEXEC) == number) return number;
  base::CloseRaw(number);
  return -1;
}

}  // namespace rcsock::posix
