#include "lib/posix/iomux/once.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lib/base/file_text.h"
#include "lib/base/reason.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/sys/pinned.h"

namespace rcsock::posix {

bool AskKernel(EpollSet* set, Sock* also) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", set->fd());
  const base::UniqueFd file(base::OpenText(path));
  if (!file.ok()) return false;
  static char text[16384];  // guarded by interest_latch
  std::size_t length = 0;
  for (;;) {
    const long n = ::syscall(SYS_read, file.get(), text + length,
                             sizeof text - 1 - length);
    if (n <= 0) return n == 0;
    length += static_cast<std::size_t>(n);
    text[length] = 0;
    char* line = text;
    for (char* end; (end = std::strchr(line, '\n')) != nullptr;
         line = end + 1) {
      if (std::strncmp(line, "tfd:", 4) != 0) continue;
      char* rest = nullptr;
      const int number = static_cast<int>(std::strtol(line + 4, &rest, 10));
      while (*rest == ' ') ++rest;
      if (std::strncmp(rest, "events:", 7) != 0) continue;
      const auto events =
          static_cast<std::uint32_t>(std::strtoul(rest + 7, nullptr, 16));
      constexpr std::uint32_t kFlags = EPOLLONESHOT |
                                       static_cast<std::uint32_t>(EPOLLET) |
                                       EPOLLEXCLUSIVE | EPOLLWAKEUP;
      if ((events & ~kFlags) != 0) continue;
      File* named = Named(number);
      Interest* one =
          named != nullptr && named->kind == FileKind::kSock
              ? Registry::Find(static_cast<Sock*>(named), set, number)
              : nullptr;
      // The number may have been closed since, while a copy of it is left.
      for (Sock* sock = also; one == nullptr && sock != nullptr;
           sock = sock->moving_next) {
        one = Registry::Find(sock, set, number);
      }
      if (one == nullptr || !one->asked) continue;
      one->told_by_kernel = true;
      one->spent.store(true, std::memory_order_relaxed);
    }
    // The rest of a line comes with the next read.
    length -= static_cast<std::size_t>(line - text);
    std::memmove(text, line, length);
  }
}

KernelSays AskAbout(Interest* interest) {
  interest->told_by_kernel = false;
  // A filter of system calls may end a process that opens a file.
  if (ProcessPinned() == base::Reason::kSandboxed) return KernelSays::kNothing;
  interest->asked = true;
  const bool known = AskKernel(interest->set, interest->sock);
  interest->asked = false;
  if (interest->told_by_kernel) return KernelSays::kReported;
  return known ? KernelSays::kArmed : KernelSays::kNothing;
}

bool TakeOnce(Interest* interest) {
  EpollSet* const set = interest->set;
  // A wait that begins behind the look does not skip OfKernel.
  set->OnceLeaves();
  set->BeginOnceMove();
  // If the kernel does not say, twice is better than never.
  const bool mine = AskAbout(interest) != KernelSays::kReported;
  if (mine) {
    Registry::RemoveFromKernel(interest);
    interest->armed_here = false;
    interest->spent.store(true, std::memory_order_relaxed);
  }
  const std::uint32_t at = set->EndOnceMove();
  if (mine) interest->moved_at = at;
  set->OnceLeaves();  // with the count of the move
  return mine;
}

void GiveOnce(Interest* interest) {
  interest->spent.store(false, std::memory_order_relaxed);
  Registry::AddToKernel(interest);
}

}  // namespace rcsock::posix
