#include "lib/rendezvous/peer_process.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace rcsock::rendezvous {
namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// Reads a link of /proc/PID/fd and does not follow it.  So nothing of the other
// process is opened, and the kernel says what the descriptor is.
std::uint32_t InodeOfLink(int folder, const char* name) {
  char text[64];
  const long n = ::syscall(SYS_readlinkat, folder, name, text, sizeof text);
  std::string_view link(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  constexpr std::string_view kSocket = "socket:[";
  if (!link.starts_with(kSocket)) return 0;
  link.remove_prefix(kSocket.size());
  std::uint32_t inode = 0;
  const auto end =
      std::from_chars(link.data(), link.data() + link.size(), inode);
  link.remove_prefix(static_cast<std::size_t>(end.ptr - link.data()));
  return end.ec == std::errc() && link.starts_with(']') ? inode : 0;
}

// Returns whether the kernel lets this process read a link in the folder.  For
// a process of another user namespace the kernel may list the numbers only.
// Nearly every process has one of the first numbers.  To list them takes much
// longer.
bool Readable(int folder) {
  for (int number = 0; number < 256; ++number) {
    char name[8];
    *std::to_chars(name, name + sizeof name - 1, number).ptr = '\0';
    char link[8];
    if (::syscall(SYS_readlinkat, folder, name, link, sizeof link) >= 0) {
      return true;
    }
    if (errno != ENOENT) return false;
  }
  return false;
}

base::UniqueFd OpenFolder(const char* path) {
  base::UniqueFd folder(base::OpenHighForParent([path] {
    return ::syscall(SYS_openat, AT_FDCWD, path,
                     O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  }));
  struct statfs system;
  if (folder.ok() &&
      (::syscall(SYS_fstatfs, folder.get(), &system) != 0 ||
       system.f_type != PROC_SUPER_MAGIC || !Readable(folder.get()))) {
    folder.reset();
  }
  return folder;
}

// Returns whether the process lives now that its folder is open.  If it has
// ended, its number may be that of another process.  Returns true before Linux
// 6.5, where the kernel does not say.
bool StillLives(int channel) {
  const base::UniqueFd process(base::OpenHigh([channel] {
    int pidfd = -1;
    socklen_t length = sizeof pidfd;
    ::syscall(SYS_getsockopt, channel, SOL_SOCKET, SO_PEERPIDFD, &pidfd,
              &length);
    return pidfd;
  }));
  if (!process.ok()) return errno == ENOPROTOOPT;
  pollfd ended{process.get(), POLLIN, 0};
  timespec now{0, 0};
  return ::syscall(SYS_ppoll, &ended, 1, &now, nullptr, 8) == 0;
}

}  // namespace

PeerProcess::PeerProcess(int channel, std::uint32_t thread) {
  const int saved = errno;
  ucred peer{};
  socklen_t length = sizeof peer;
  // Without a number the peer is of another PID namespace.
  if (::getsockopt(channel, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
      peer.pid > 0) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/task/%u/fd", peer.pid, thread);
    descriptors_ = OpenFolder(path);
    if (!descriptors_.ok()) {
      std::snprintf(path, sizeof path, "/proc/%d/fd", peer.pid);
      descriptors_ = OpenFolder(path);
    }
    if (descriptors_.ok() && !StillLives(channel)) descriptors_.reset();
  }
  errno = saved;
}

bool PeerProcess::Holds(std::uint32_t number, std::uint32_t inode) const {
  if (!descriptors_.ok() || inode == 0) return false;
  const int saved = errno;
  char name[16];
  std::snprintf(name, sizeof name, "%u", number);
  const bool holds = InodeOfLink(descriptors_.get(), name) == inode;
  errno = saved;
  return holds;
}

}  // namespace rcsock::rendezvous
