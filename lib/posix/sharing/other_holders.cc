#include "lib/posix/sharing/other_holders.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/listing.h"
#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {
namespace {

constexpr std::uint64_t kMostNs = 200'000'000;
constexpr int kMostAncestors = 64;

int Open(int folder, const char* path, int flags) {
  return base::OpenHigh([&] {
    return ::syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC | flags, 0);
  });
}

// The target of a link of /proc; empty: nothing.
struct Link {
  Link(int folder, const char* path) {
    const long n =
        ::syscall(SYS_readlinkat, folder, path, text, sizeof text - 1);
    error = n < 0 ? errno : 0;
    text[n < 0 ? 0 : n] = '\0';
  }
  char text[64];
  int error;
};

constexpr char kUnderWay[] = "\nscm_fds:";

// The start of a file of /proc, as text; empty: nothing.
template <std::size_t kRoom>
struct Text {
  Text(int folder, const char* path) {
    const base::UniqueFd file(Open(folder, path, 0));
    if (!file.ok()) error = errno;
    while (file.ok() && length < kRoom - 1) {
      const long n =
          ::syscall(SYS_read, file.get(), text + length, kRoom - 1 - length);
      if (n < 0) error = errno;
      if (n <= 0) break;
      length += static_cast<std::size_t>(n);
    }
    text[length] = '\0';
  }
  bool whole() const { return length < kRoom - 1; }
  // For a socket: how many descriptors are under way to it.
  long UnderWay() const {
    const char* const at = std::strstr(text, kUnderWay);
    return at == nullptr ? 0 : std::atol(at + sizeof kUnderWay - 1);
  }
  std::size_t length = 0;
  int error = 0;
  char text[kRoom];
};

// A process whose descriptors may not be read.
struct Stranger {
  bool kernels = false;  // a thread of the kernel's, which has no descriptors
  long parent = 0;       // 0: the parent is in another PID namespace
  std::uint64_t began_ns = UINT64_MAX;
  uid_t users[4] = {};
  bool known = false;
};

Stranger Ask(int proc, const char* pid) {
  Stranger is;
  char path[64];
  std::snprintf(path, sizeof path, "%.16s/stat", pid);
  const Text<1024> stat(proc, path);
  // What stands between the parentheses may have any characters.
  const char* const name_end = std::strrchr(stat.text, ')');
  unsigned flags = 0;
  unsigned long long began = 0;
  if (name_end == nullptr ||
      std::sscanf(name_end + 1,
                  " %*c %ld %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d "
                  "%*d %*d %*d %*d %*d %llu",
                  &is.parent, &flags, &began) != 3) {
    return is;
  }
  constexpr unsigned kKernelThread = 0x00200000;
  is.kernels = (flags & kKernelThread) != 0;
  const long ticks = ::sysconf(_SC_CLK_TCK);
  if (ticks <= 0) return is;
  is.began_ns = began * (1'000'000'000 / static_cast<unsigned long>(ticks));
  std::snprintf(path, sizeof path, "%.16s/status", pid);
  const Text<2048> status(proc, path);
  const char* const users = std::strstr(status.text, "\nUid:");
  is.known = users != nullptr &&
             std::sscanf(users, "\nUid: %u %u %u %u", &is.users[0],
                         &is.users[1], &is.users[2], &is.users[3]) == 4;
  return is;
}

// With a margin, since both clocks are coarse.
bool Before(std::uint64_t began_ns, std::uint64_t born_ns) {
  constexpr std::uint64_t kMarginNs = 30'000'000;
  return born_ns > kMarginNs && began_ns < born_ns - kMarginNs;
}

class Look {
 public:
  Look(int proc, Sought* all, int count)
      : proc_(proc),
        all_(all),
        count_(count),
        deadline_(base::NowNs() + kMostNs) {}

  // False: no time is left.
  bool Process(const char* pid) {
    char path[64];
    std::snprintf(path, sizeof path, "%.16s/task", pid);
    const base::UniqueFd tasks(Open(proc_, path, O_DIRECTORY));
    if (!tasks.ok()) {
      if (errno != ENOENT && errno != ESRCH) Unreadable(pid);
      return true;
    }
    const long process = std::atol(pid);
    base::EachEntry(tasks.get(), [&](const char* task) {
      if (*task < '0' || *task > '9') return true;
      constexpr int kFiles = 2;  // KCMP_FILES
      const long thread = std::atol(task);
      if (thread != process &&
          ::syscall(SYS_kcmp, process, thread, kFiles, 0, 0) == 0) {
        return true;
      }
      if (!Task(tasks.get(), task)) {
        Unreadable(pid);
        return false;
      }
      return base::NowNs() < deadline_;
    });
    return base::NowNs() < deadline_;
  }

 private:
  // False: its descriptors may not be read.
  bool Task(int tasks, const char* task) {
    bool readable = true;
    char path[64];
    std::snprintf(path, sizeof path, "%.16s/fd", task);
    const base::UniqueFd list(Open(tasks, path, O_DIRECTORY));
    if (!list.ok()) return errno == ENOENT || errno == ESRCH;
    base::EachEntry(list.get(), [&](const char* number) {
      if (*number < '0' || *number > '9') return true;
      const Link link(list.get(), number);
      if (link.error != 0) {
        readable = link.error == ENOENT || link.error == ESRCH;
        return readable;
      }
      const bool ring = std::strstr(link.text, "[io_uring]") != nullptr;
      const bool socket = std::strncmp(link.text, "socket:[", 8) == 0;
      if (socket) Socket(std::strtoull(link.text + 8, nullptr, 10), task);
      if (socket || ring) {
        std::snprintf(path, sizeof path, "%.16s/fdinfo/%.16s", task, number);
        Holds(tasks, path, ring);
      }
      return base::NowNs() < deadline_;
    });
    return readable;
  }

  void Socket(unsigned long long inode, const char* task) {
    for (int i = 0; i < count_; ++i) {
      if (all_[i].inode != inode) continue;
      all_[i].held = true;
      RCSOCK_LOG(2, "connection %llu: process %s has it", inode, task);
    }
  }

  // Looks at what is under way in a socket of AF_UNIX, or registered with an
  // io_uring.  The kernel lists a ring's files only while no thread uses the
  // ring, by names that differ between versions.
  void Holds(int tasks, const char* path, bool ring) {
    const Text<8192> info(tasks, path);
    if (info.error == ENOENT || info.error == ESRCH) return;
    const bool none =
        ring ? std::strstr(info.text, "\nUserFiles:\t0\n") != nullptr
             : info.UnderWay() == 0;
    if (info.error == 0 && info.whole() && none) return;
    RCSOCK_LOG(2, "descriptors under way: %s", path);
    Everything();
  }

  void Everything() {
    for (int i = 0; i < count_; ++i) all_[i].held = true;
  }

  void Unreadable(const char* pid) {
    const Stranger is = Ask(proc_, pid);
    if (is.kernels) return;
    for (int i = 0; i < count_; ++i) {
      Sought& one = all_[i];
      bool may = !is.known || !Before(is.began_ns, one.born_ns);
      for (const uid_t user : is.users) may |= user == one.owner;
      if (!may || one.held) continue;
      one.held = true;
      RCSOCK_LOG(2, "process %s may not be looked into", pid);
    }
  }

  const int proc_;
  Sought* const all_;
  const int count_;
  const std::uint64_t deadline_;
};

// Whether the kernel reports what is under way to sockets of AF_UNIX (Linux
// 5.5).
bool SaysUnderWay() {
  static constinit std::atomic<bool> says{false};
  if (says.load(std::memory_order_relaxed)) return true;
  const base::UniqueFd one(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  }));
  if (!one.ok()) return false;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", one.get());
  const Text<2048> info(AT_FDCWD, path);
  if (std::strstr(info.text, kUnderWay) == nullptr) return false;
  says.store(true, std::memory_order_relaxed);
  return true;
}

// Whether an untaken message to this process may name a connection that the
// process already has.  What its rings hold is known.
bool UnderWayHere() {
  bool any = false;
  const bool all = base::EachDescriptor(0, [&any](int number) {
    int domain = 0;
    socklen_t size = sizeof domain;
    if (any ||
        ::syscall(SYS_getsockopt, number, SOL_SOCKET, SO_DOMAIN, &domain,
                  &size) != 0 ||
        domain != AF_UNIX) {
      return;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", number);
    const Text<2048> info(AT_FDCWD, path);
    any = info.UnderWay() != 0 || (info.error != 0 && info.error != ENOENT);
  });
  if (any) RCSOCK_LOG(2, "descriptors are under way to this process");
  return any || !all;
}

}  // namespace

bool SeesAllHolders(std::uint64_t born_ns) {
  // The inode number of the first PID namespace is fixed.
  const Link space(AT_FDCWD, "/proc/self/ns/pid");
  if (std::strcmp(space.text, "pid:[4026531836]") == 0) return true;
  const base::UniqueFd proc(Open(AT_FDCWD, "/proc", O_DIRECTORY));
  if (!proc.ok()) return false;
  long ancestor = ::syscall(SYS_getppid);
  std::uint64_t child_began_ns = UINT64_MAX;
  // The first process of the namespace may have adopted the process below it.
  for (int i = 0; i < kMostAncestors && ancestor > 1; ++i) {
    char name[24];
    std::snprintf(name, sizeof name, "%ld", ancestor);
    const Stranger is = Ask(proc.get(), name);
    // A younger process has the number of an ancestor that has ended.
    if (is.began_ns > child_began_ns) return false;
    if (Before(is.began_ns, born_ns)) return true;
    child_began_ns = is.began_ns;
    ancestor = is.parent;
  }
  return false;
}

bool LookForHolders(Sought* all, int count) {
  // /proc may belong to another namespace, or hide other users' processes.
  const Link own(AT_FDCWD, "/proc/self");
  if (std::atol(own.text) != OwnPid() ||
      ::syscall(SYS_faccessat, AT_FDCWD, "/proc/1/stat", R_OK) != 0 ||
      !SaysUnderWay()) {
    return false;
  }
  const base::UniqueFd proc(Open(AT_FDCWD, "/proc", O_DIRECTORY));
  if (!proc.ok()) return false;
  Look look(proc.get(), all, count);
  bool in_time = true;
  const long self = OwnPid();
  const bool listed = base::EachEntry(proc.get(), [&](const char* name) {
    if (*name >= '0' && *name <= '9' && std::atol(name) != self) {
      in_time = look.Process(name);
    }
    return in_time;
  });
  return listed && in_time && !UnderWayHere();
}

}  // namespace rcsock::posix
