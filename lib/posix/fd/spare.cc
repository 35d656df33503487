#include "lib/posix/fd/spare.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "lib/base/unique_fd.h"

namespace rcsock::posix {
namespace {

// At most this many connections may be closed and not yet delivered, if no
// other number is left.
constinit std::atomic<int> spares[] = {-1, -1, -1, -1};

}  // namespace

void KeepSpares() {
  for (auto& spare : spares) {
    if (spare.load(std::memory_order_relaxed) >= 0) continue;
    // A kind of file that keeps nothing else alive, in a child of fork too.
    const int fd = base::OpenHigh([&] {
      return ::syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    });
    if (fd < 0) return;
    int none = -1;
    if (!spare.compare_exchange_strong(none, fd)) base::CloseRaw(fd);
  }
}

int UseSpare(int fd) {
  for (auto& spare : spares) {
    const int number = spare.exchange(-1);
    if (number < 0) continue;
    // The kernel closes what was there.
    if (::syscall(SYS_dup3, fd, number, O_CLOEXEC) == number) return number;
    base::CloseRaw(number);
  }
  return -1;
}

}  // namespace rcsock::posix
