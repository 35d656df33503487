#include "lib/posix/kernel_hold.h"

#include <cerrno>
#include <new>

#include "lib/base/guard.h"
#include "lib/posix/file.h"
#include "lib/posix/sock.h"
#include "lib/posix/sock_plain.h"

namespace rcsock::posix {

bool KernelHold::Reserve(std::size_t count) {
  if (count <= room_) return true;
  many_.reset(new (std::nothrow) Held[count]);
  if (!many_) return false;
  list_ = many_.get();
  room_ = count;
  return true;
}

bool KernelHold::Enter(int fd, Sock* sock) {
  if (count_ == room_) return true;
  std::uint32_t entered = 0;
  switch (sock->EnterKernelWait(&entered)) {
    case Sock::KernelWait::kNotNeeded:
      break;
    case Sock::KernelWait::kNotTheKernels:
      return false;
    case Sock::KernelWait::kEntered:
      list_[count_++] = {sock, entered};
      break;
  }
  // (What the number names instead would not be held.)
  return sock->IsAt(fd);
}

bool KernelHold::EnterAll(const pollfd* fds, nfds_t count) {
  std::size_t socks = 0;
  for (nfds_t i = 0; i < count; ++i) {
    int fd;
    // (The kernel says so.)
    if (!base::TryLoad(&fds[i].fd, &fd)) return true;
    File* file = Lookup(fd);
    if (file != nullptr && file->kind == FileKind::kSock) ++socks;
  }
  if (socks == 0) return true;
  Reserve(socks);
  for (nfds_t i = 0; i < count; ++i) {
    File* file = Lookup(fds[i].fd);
    if (file == nullptr || file->kind != FileKind::kSock) continue;
    if (!Enter(fds[i].fd, static_cast<Sock*>(file))) return false;
  }
  return true;
}

bool KernelHold::EnterAll(int count, const fd_set* in, const fd_set* out,
                          const fd_set* except) {
  const auto bit = [](const fd_set* set, int fd) {
    unsigned long word;
    return set != nullptr &&
           base::TryLoad(reinterpret_cast<const unsigned long*>(set) + fd / 64,
                         &word) &&
           (word >> (fd % 64) & 1) != 0;
  };
  for (int pass = 0; pass < 2; ++pass) {
    std::size_t socks = 0;
    for (int fd = 0; fd < count; ++fd) {
      File* file = Lookup(fd);
      if (file == nullptr || file->kind != FileKind::kSock) continue;
      if (!bit(in, fd) && !bit(out, fd) && !bit(except, fd)) continue;
      ++socks;
      if (pass == 1 && !Enter(fd, static_cast<Sock*>(file))) return false;
    }
    if (socks == 0) break;
    Reserve(socks);
  }
  return true;
}

void KernelHold::Release() {
  const int saved = errno;
  while (count_ > 0) {
    --count_;
    list_[count_].sock->LeaveKernelWait(list_[count_].entered);
  }
  errno = saved;
}

}  // namespace rcsock::posix
