#include "lib/rendezvous/meet_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/file_text.h"

namespace rcsock::rendezvous::meet_directory {
namespace {

constexpr char kPrefix[] = "rcsock-1-";
constexpr char kUnfinished[] = "rcsock-1-new-";
constexpr std::uint64_t kSweepNs = 60'000'000'000;
// How long the kind of a mount is remembered.
constexpr std::uint64_t kMountsNs = 10'000'000'000;
// The most bytes that are read of a list of mounts, and the longest line.
constexpr std::size_t kMostMounts = 4 << 20;
constexpr std::size_t kLongestMount = 8192;
// The most names of dead processes that one sweep looks at.
constexpr int kMostSwept = 64;

struct Name {
  char text[64];
};

Name NameOf(const Tuple& half, int place) {
  Name name;
  char* out = name.text + std::snprintf(name.text, sizeof name.text, kPrefix);
  for (const std::uint8_t byte : half.c_addr) {
    out += std::sprintf(out, "%02x", byte);
  }
  std::sprintf(out, "%04x-%d", half.c_port, place);
  return name;
}

// Returns whether the kernel itself answers for a file system.  For the others
// another host or a process answers, when it likes.
bool IsLocal(std::string_view type) {
  constexpr std::string_view kLocal[] = {
      "tmpfs", "ext4", "xfs",   "btrfs", "overlay",  "ext2",
      "ext3",  "f2fs", "ramfs", "zfs",   "bcachefs", "rootfs"};
  return std::find(std::begin(kLocal), std::end(kLocal), type) !=
         std::end(kLocal);
}

// Returns the type in a line of /proc/PID/mountinfo if the line is the mount's:
// "ID PARENT DEVICE ROOT PLACE OPTIONS... - TYPE SOURCE OPTIONS".
std::string_view TypeIn(std::string_view line, std::uint64_t mount) {
  std::uint64_t id = 0;
  const auto number =
      std::from_chars(line.data(), line.data() + line.size(), id);
  // Spaces in names are written as \040.
  const std::size_t dash = line.find(" - ");
  if (number.ec != std::errc() || id != mount ||
      dash == std::string_view::npos) {
    return {};
  }
  const std::string_view rest = line.substr(dash + 3);
  return rest.substr(0, rest.find(' '));
}

// Returns whether the mount has a file system of this host.  A mount that this
// thread does not see has none.  statfs would ask the server.
bool MountIsLocal(std::uint64_t mount) {
  const base::UniqueFd list(base::OpenText("/proc/thread-self/mountinfo"));
  bool local = false;
  base::EachLine<kLongestMount>(
      list.get(), kMostMounts, [mount, &local](std::string_view line) {
        const std::string_view type = TypeIn(line, mount);
        local = IsLocal(type);
        return !type.empty();
      });
  return local;
}

// Returns the number of the folder's mount, or 0.  Some file systems ask their
// server in statx, whatever its flags (9p).
std::uint64_t MountOf(int folder) {
  char name[48];
  std::snprintf(name, sizeof name, "/proc/thread-self/fdinfo/%d", folder);
  char text[512];
  const std::string_view all = base::ReadStart(name, text, sizeof text);
  constexpr std::string_view kKey = "mnt_id:\t";
  const std::size_t at = all.find(kKey);
  std::uint64_t mount = 0;
  if (at != std::string_view::npos) {
    std::from_chars(all.data() + at + kKey.size(), all.data() + all.size(),
                    mount);
  }
  return mount;
}

// Returns whether the kernel asks no server for what lies in the folder.  This
// function asks none.
bool NobodyToWaitFor(int folder) {
  static constinit struct {
    std::uint64_t mount, looked_ns;
    bool local;
  } known{};
  const std::uint64_t mount = MountOf(folder);
  if (mount == 0) return false;
  const std::uint64_t now = base::NowNs();
  if (known.mount != mount || now - known.looked_ns > kMountsNs) {
    known = {mount, now, MountIsLocal(mount)};
  }
  return known.local;
}

// Opens the directory anew each time: it may have been made again.
base::UniqueFd Open() {
  base::UniqueFd folder(base::OpenHigh([] {
    return ::syscall(SYS_openat, AT_FDCWD, base::GetConfig().meet_dir,
                     O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
  }));
  if (folder.ok() && !NobodyToWaitFor(folder.get())) {
    folder.reset();
    errno = EOPNOTSUPP;
  }
  return folder;
}

// Returns an address that leads to `name` in the folder, or to the file itself.
// The address goes by the descriptor.  So it fits however long the directory's
// path is, and no symbolic link in the path counts.
sockaddr_un AddressOf(int fd, const char* name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path,
                name == nullptr ? "/proc/thread-self/fd/%d"
                                : "/proc/thread-self/fd/%d/%s",
                fd, name);
  return address;
}

base::UniqueFd FindIn(int folder, const char* name) {
  base::UniqueFd found(base::OpenHigh([folder, name] {
    return ::syscall(SYS_openat, folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC,
                     0);
  }));
  struct stat what;
  if (found.ok() &&
      (::syscall(SYS_newfstatat, found.get(), "", &what, AT_EMPTY_PATH) != 0 ||
       !S_ISSOCK(what.st_mode))) {
    found.reset();
    errno = ECONNREFUSED;
  }
  return found;
}

int ConnectTo(int fd, int found) {
  const sockaddr_un address = AddressOf(found, nullptr);
  return ::syscall(SYS_connect, fd, &address, sizeof address) == 0 ? 0 : -errno;
}

// Returns whether the name leads to no socket of a live process.  The call
// comes from a socket of another type, which disturbs no listener: the kernel
// refuses it with another error.
bool IsDead(int folder, const char* name) {
  const base::UniqueFd found = FindIn(folder, name);
  if (!found.ok()) return errno == ECONNREFUSED;
  const base::UniqueFd fd(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  }));
  return fd.ok() && ConnectTo(fd.get(), found.get()) == -ECONNREFUSED;
}

// Lets all users call the socket.  Others may have put a symbolic link in its
// place, so only the name of a descriptor is followed.
bool OpenToAll(int folder, const char* name) {
  const base::UniqueFd found = FindIn(folder, name);
  if (!found.ok()) return false;
  const sockaddr_un path = AddressOf(found.get(), nullptr);
  return ::syscall(SYS_fchmodat, AT_FDCWD, path.sun_path, 0666) == 0;
}

void Remove(int folder, const char* name) {
  ::syscall(SYS_unlinkat, folder, name, 0);
}

// Removes names that killed processes have left.  The work is bounded, however
// many names there are.
void Sweep(int folder) {
  static constinit std::uint64_t swept = 0;  // 0: never
  const std::uint64_t now = base::NowNs();
  if (swept != 0 && now - swept < kSweepNs) return;
  swept = now;
  const base::UniqueFd list(base::OpenHigh([folder] {
    return ::syscall(SYS_openat, folder, ".",
                     O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  }));
  alignas(dirent64) char text[16384];
  const long length =
      list.ok() ? ::syscall(SYS_getdents64, list.get(), text, sizeof text) : 0;
  int looks = 0;
  for (long at = 0; at < length && looks < kMostSwept;) {
    const auto* entry = reinterpret_cast<const dirent64*>(text + at);
    at += entry->d_reclen;
    if (std::strncmp(entry->d_name, kPrefix, sizeof kPrefix - 1) != 0) continue;
    ++looks;
    if (IsDead(folder, entry->d_name)) Remove(folder, entry->d_name);
  }
}

// Gives the socket that listens as `unfinished` a name of `half`.
int Place(int folder, const char* unfinished, const Tuple& half) {
  for (int place = 0; place < kPlaces; ++place) {
    const Name name = NameOf(half, place);
    for (int tries = 0; tries < 2; ++tries) {
      if (::syscall(SYS_linkat, folder, unfinished, folder, name.text, 0) ==
          0) {
        return place;
      }
      if (errno != EEXIST) return -errno;
      if (!IsDead(folder, name.text)) break;
      Remove(folder, name.text);
    }
  }
  return -EADDRINUSE;
}

}  // namespace

bool Given() { return *base::GetConfig().meet_dir != '\0'; }

int Publish(int fd, const Tuple& half, int backlog) {
  const base::UniqueFd folder = Open();
  if (!folder.ok()) return -errno;
  Sweep(folder.get());
  static constinit std::uint32_t count = 0;
  Name unfinished;
  std::snprintf(unfinished.text, sizeof unfinished.text, "%s%016llx-%x",
                kUnfinished, static_cast<unsigned long long>(base::NowNs()),
                count++);
  const sockaddr_un address = AddressOf(folder.get(), unfinished.text);
  if (::syscall(SYS_bind, fd, &address, sizeof address) != 0) return -errno;
  // A process of another user calls here, whatever umask this process has.
  int result = -EACCES;
  if (!OpenToAll(folder.get(), unfinished.text) ||
      ::syscall(SYS_listen, fd, backlog) != 0) {
    result = -errno;
  } else {
    result = Place(folder.get(), unfinished.text, half);
  }
  Remove(folder.get(), unfinished.text);
  return result;
}

void Withdraw(const Tuple& half, int place) {
  if (place < 0) return;
  const base::UniqueFd folder = Open();
  if (folder.ok()) Remove(folder.get(), NameOf(half, place).text);
}

base::UniqueFd Find(const Tuple& half, int place) {
  const base::UniqueFd folder = Open();
  if (!folder.ok()) return {};
  return FindIn(folder.get(), NameOf(half, place).text);
}

int Call(int fd, int found) { return ConnectTo(fd, found); }

int TryOut() {
  // No connection has this half: it is all zeros.
  const Tuple half{};
  const base::UniqueFd fd(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  }));
  if (!fd.ok()) return errno;
  const int place = Publish(fd.get(), half, 1);
  if (place < 0) return -place;
  const int error = Find(half, place).ok() ? 0 : errno;
  Withdraw(half, place);
  return error;
}

}  // namespace rcsock::rendezvous::meet_directory
