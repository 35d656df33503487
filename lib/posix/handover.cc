#include "lib/posix/handover.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/process.h"
#include "lib/posix/table.h"

namespace rcsock::posix {
namespace {

constexpr char kName[] = "RCSOCK_INHERIT";
constexpr std::size_t kNameLength = sizeof kName - 1;
// Inherited connections are looked for among so many descriptors.
constexpr int kLook = 4096;

bool Names(const char* entry, const char* name, std::size_t length) {
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

bool PreloadIn(char* const environment[]) {
  for (std::size_t i = 0; environment != nullptr && environment[i] != nullptr;
       ++i) {
    if (Names(environment[i], "LD_PRELOAD", 10)) {
      return std::strstr(environment[i], "rcsock") != nullptr;
    }
  }
  return false;
}

bool Kept(int fd) {
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

bool IsTcp(int fd) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  return ::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == IPPROTO_TCP;
}

// The stream of the parent that is the connection `inode`; usually that of the
// same number.  One that was never adopted does not know its own yet, but may
// be adopted at any moment: the parent's descriptor tells.
Sock* FindInode(std::uint64_t inode, int number) {
  const auto is = [inode](int fd) -> Sock* {
    Sock* sock = LookupSock(fd);
    if (sock == nullptr) return nullptr;
    if (sock->inode() == 0) {
      char path[64];
      std::snprintf(path, sizeof path, "/proc/%ld/fd/%d", OwnPid(), fd);
      struct stat status {};
      if (::stat(path, &status) == 0) sock->set_inode(status.st_ino);
    }
    return sock->inode() == inode ? sock : nullptr;
  };
  Sock* sock = is(number);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; sock == nullptr && fd <= top; ++fd) sock = is(fd);
  return sock;
}

}  // namespace

Handover::Handover(bool spawn, char* const environment[])
    : spawn_(spawn),
      // Whether a program is linked with us nobody can tell before.
      known_(PreloadIn(environment) || OwnFace() == Face::kLibrary) {
  const int saved = errno;
  std::memcpy(variable_, kName, kNameLength);
  length_ = kNameLength;
  if (InBorrowedMemory()) {
    FromBorrowed();
  } else {
    FromOurs();
  }
  errno = saved;
}

void Handover::FromOurs() {
  BeforeExec(spawn_);
  if (!AnyUnread()) return;
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* sock = LookupSock(fd);
    if (sock == nullptr || sock->fd() != fd || sock->UnreadBytes() == 0) {
      continue;
    }
    // (The file actions of posix_spawn may give it one that is closed here.)
    if (!spawn_ && !KeptByExec(sock)) continue;
    if (!known_) {
      if (KeptByExec(sock)) Lost(fd);
      continue;
    }
    if (spawn_) sock->GivenAway();
    Pass(sock->UnreadFd(), true);
  }
}

// What the child has done to its descriptors is in no table: its connections
// are found by what they are.  The streams are the parent's, whose conductor
// moves them; this thread only waits for that.
void Handover::FromBorrowed() {
  const int top = fd_high.load(std::memory_order_relaxed);
  const int most = top > 255 ? top : 255;
  for (int fd = 0; fd <= most; ++fd) {
    if (base::IsInternalFd(fd) || !Kept(fd)) continue;
    const std::uint64_t inode = SocketInode(fd);
    if (inode == 0) continue;
    Sock* sock = FindInode(inode, fd);
    if (sock == nullptr) continue;
    // First, so that TryAdopt sees it if this does not see what TryAdopt did.
    sock->GivenAway();
    for (int i = 0; sock->mode() == Mode::kEngine && i < 200; ++i) {
      if (i % 10 == 0) sock->AskFromBorrowed();
      timespec brief{0, i < 50 ? 100'000 : 10'000'000};
      ::nanosleep(&brief, nullptr);
    }
    if (sock->mode() == Mode::kEngine) {
      base::Log("fd %d: its peer did not answer before exec", fd);
    }
    if (sock->UnreadBytes() == 0) continue;
    if (!known_) {
      Lost(fd);
      continue;
    }
    Pass(sock->UnreadFd(), false);
  }
}

void Handover::Lost(int fd) const {
  base::Log("fd %d: bytes read ahead are lost to a program without rcsock", fd);
  stats.reasons[static_cast<int>(base::Reason::kUnreadExec)].fetch_add(
      1, std::memory_order_relaxed);
}

void Handover::Pass(int memory, bool ours) {
  if (memory < 0 || count_ == kMost) return;
  long passed;
  if (ours) {
    passed = ::syscall(SYS_fcntl, memory, F_DUPFD, 64);
  } else {
    // Made after the vfork, it is in the parent's table alone.
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%ld/fd/%d", OwnPid(), memory);
    passed = ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR, 0);
  }
  if (passed < 0) {
    base::Log("bytes read ahead can't be passed on: errno %d", errno);
    return;
  }
  passed_[count_] = static_cast<int>(passed);
  length_ += static_cast<std::size_t>(
      std::snprintf(variable_ + length_, sizeof variable_ - length_, "%c%d",
                    count_ == 0 ? '=' : ',', static_cast<int>(passed)));
  ++count_;
}

Handover::~Handover() {
  const int saved = errno;
  for (int i = 0; i < count_; ++i) ::syscall(SYS_close, passed_[i]);
  if (!spawn_) AfterExec();
  errno = saved;
}

std::size_t Handover::Room(char* const from[]) {
  std::size_t n = 2;
  for (std::size_t i = 0; from != nullptr && from[i] != nullptr; ++i) ++n;
  return n;
}

void Handover::Extend(char* const from[], char** to) const {
  std::size_t n = 0;
  for (std::size_t i = 0; from != nullptr && from[i] != nullptr; ++i) {
    if (!Names(from[i], kName, kNameLength)) to[n++] = from[i];
  }
  to[n++] = const_cast<char*>(variable_);
  to[n] = nullptr;
}

void TakeInherited() {
  const char* list = ::getenv(kName);
  if (list == nullptr) return;
  const char* at = list;
  for (int taken = 0; *at != '\0' && taken < 64; ++taken) {
    char* end = nullptr;
    const long number = std::strtol(at, &end, 10);
    if (end == at || number < 0 || number > (1 << 24)) break;
    at = *end == ',' ? end + 1 : end;
    const int memory = static_cast<int>(number);
    Sock* sock = Sock::New(stream::Role::kConnector, false);
    if (sock == nullptr) break;
    if (!sock->InheritUnread(memory)) {
      sock->Unref();
      continue;
    }
    // Every number that names the connection, wherever it was put.
    int first = -1;
    for (int fd = 0; fd < kLook; ++fd) {
      if (SocketInode(fd) != sock->UnreadSocket() || !IsTcp(fd)) continue;
      if (first < 0) {
        first = fd;
        const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
        sock->nonblock.store(flags >= 0 && (flags & O_NONBLOCK) != 0);
        Bind(fd, sock);
      } else {
        CopyFd(first, fd);
      }
    }
    if (first < 0) sock->Unref();
  }
  ::unsetenv(kName);
}

}  // namespace rcsock::posix
