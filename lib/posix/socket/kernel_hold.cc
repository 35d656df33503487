#include "lib/posix/socket/kernel_hold.h"

#include <cerrno>
#include <new>

#include "lib/base/guard.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/select_sets.h"

namespace rcsock::posix {

bool KernelHold::Reserve(std::size_t count) {
  if (count <= room_) return true;
  many_.reset(new (std::nothrow) Held[count]);
  if (!many_) return false;
  list_ = many_.get();
  room_ = count;
  return true;
}

// Adoption would take away what the thread waits for, so adoption comes after
// LeaveCall.
bool KernelHold::Enter(int fd, Sock* sock) {
  if (count_ == room_) return true;
  if (sock->lane_state().MayAdopt()) {
    const std::uint32_t entered = sock->calls().Enter();
    // seq_cst: pairs with TakeFromKernelLatched, as InKernel::May does.
    if (sock->mode(std::memory_order_seq_cst) == Mode::kEngine) {
      sock->LeaveCall(entered);
      return false;
    }
    list_[count_++] = {sock, entered};
  } else if (sock->mode() == Mode::kEngine) {
    return false;
  }
  // Whatever the number names instead would not be held.
  return sock->IsAt(fd);
}

bool KernelHold::EnterAll(const pollfd* fds, nfds_t count) {
  std::size_t socks = 0;
  for (nfds_t i = 0; i < count; ++i) {
    int fd;
    // The kernel reports the bad address.
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
  const SelectInput sets{count, in, out, except};
  bool all = true;
  std::size_t socks = 0;
  const auto each_sock = [&](auto&& each) {
    sets.ForEach([&](int fd, auto...) {
      File* file = Lookup(fd);
      if (file == nullptr || file->kind != FileKind::kSock) return;
      each(fd, static_cast<Sock*>(file));
    });
  };
  each_sock([&](int, Sock*) { ++socks; });
  if (socks == 0) return true;
  Reserve(socks);
  each_sock([&](int fd, Sock* sock) { all = all && Enter(fd, sock); });
  return all;
}

void KernelHold::Release() {
  const int saved = errno;
  while (count_ > 0) {
    --count_;
    list_[count_].sock->LeaveCall(list_[count_].entered);
  }
  errno = saved;
}

}  // namespace rcsock::posix
