#include "tools/rcsock/doctor/host.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "lib/base/config.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/meet_directory.h"
#include "lib/verbs/verbs.h"
#include "tools/rcsock/doctor/limits.h"
#include "tools/rcsock/printable.h"
#include "tools/rcsock/variables.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// What a promoted, idle stream pins: docs/rdma-lane.md.
constexpr std::uint64_t kIdlePinned = 32 * 1024;

void ExamineMemlock(Findings* findings) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) {
    findings->Good("memlock", "no limit of locked memory");
    return;
  }
  const std::uint64_t streams = limit.rlim_cur / kIdlePinned;
  const std::string words =
      fmt::format("{} KiB of locked memory: some {} idle streams on rdma lanes",
                  limit.rlim_cur / 1024, streams);
  const std::string mend =
      "ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit";
  if (streams < 2) {
    findings->Bad("memlock", words, mend);
  } else if (streams < 1024) {
    findings->Warn("memlock", words, mend);
  } else {
    findings->Good("memlock", words);
  }
}

void ExamineNamespaces(Findings* findings) {
  // A parameter of ib_core, absent where that is built without namespaces.
  const std::string mode =
      FirstLine("/sys/module/ib_core/parameters/netns_mode");
  if (mode == "N") {
    findings->Note("netns mode",
                   "exclusive: a device belongs to one network namespace",
                   "rdma system set netns shared, or give a container its "
                   "own: rdma dev set DEVICE netns NAME");
  } else if (mode == "Y") {
    findings->Good("netns mode",
                   "shared: every network namespace sees the devices");
  }
  if (Exists("/.dockerenv") || Exists("/run/.containerenv") ||
      std::getenv("container") != nullptr) {
    findings->Note(
        "container",
        "this is one: rdma needs the devices, shm needs a common network "
        "namespace with the peer",
        "docker run --device=/dev/infiniband --ulimit memlock=-1 "
        "(--network=host, or --network=container:PEER for shm)");
  }
}

void ExamineAccess(Findings* findings) {
  std::error_code error;
  bool any = false;
  bool refused = false;
  for (const auto& entry : fs::directory_iterator("/dev/infiniband", error)) {
    const std::string name = entry.path().filename().string();
    if (name != "rdma_cm" && name.rfind("uverbs", 0) != 0) continue;
    any = true;
    if (::access(entry.path().c_str(), R_OK | W_OK) != 0) {
      refused = true;
      findings->Bad("/dev/infiniband",
                    fmt::format("{} may not be opened by this user",
                                entry.path().string()),
                    fmt::format("chmod 666 {} (rdma-core's udev rules do it)",
                                entry.path().string()));
    }
  }
  if (!any) {
    findings->Bad("/dev/infiniband",
                  "there are devices, but nothing of them in /dev",
                  "modprobe ib_uverbs rdma_ucm; in a container: "
                  "--device=/dev/infiniband");
  } else if (!refused) {
    findings->Good("/dev/infiniband", "this user may use verbs and rdma_cm");
  }
  if (!Exists("/dev/infiniband/rdma_cm")) {
    findings->Bad("rdma_cm", "/dev/infiniband/rdma_cm is missing",
                  "modprobe rdma_ucm");
  }
}

}  // namespace

void ExamineVariables(Findings* findings) {
  const Variables all = ReadVariables();
  for (const std::string& one : all.known) {
    findings->Note("environment", fmt::format("{} is set", Printable(one)));
  }
  for (const std::string& name : all.unknown) {
    findings->Warn("environment",
                   fmt::format("{} is set, which means nothing to rcsock",
                               Printable(name)),
                   "rcsock-run(1) has the variables");
  }
}

void ExamineMeeting(Findings* findings) {
  const char* path = std::getenv("RCSOCK_MEET_DIR");
  if (path == nullptr || *path == '\0') return;
  base::LoadConfig();
  const std::string about = "meeting directory";
  if (!rendezvous::meet_directory::Given()) {
    findings->Bad(about, fmt::format("{}: no absolute path", Printable(path)),
                  "RCSOCK_MEET_DIR=/DIR");
    return;
  }
  const int error = rendezvous::meet_directory::TryOut();
  if (error == 0) {
    findings->Good(about,
                   fmt::format("{} takes sockets; containers that share it can "
                               "meet processes here",
                               Printable(path)));
    return;
  }
  findings->Bad(about,
                fmt::format("{}: {}: no lanes between network namespaces",
                            Printable(path), std::strerror(error)),
                "a local directory (not a symbolic link) that this user can "
                "write to: mkdir -m 1777 DIR");
}

void ExamineKey(Findings* findings) {
  const char* path = std::getenv("RCSOCK_KEY_FILE");
  if (path == nullptr || *path == '\0') return;
  constexpr std::size_t kMost = sizeof base::Config::key;
  // A pipe without a writer would block this process.
  const base::UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char key[kMost + 1];
  std::size_t size = 0;
  ssize_t n = file.ok() ? 1 : -1;
  while (n > 0 && size < sizeof key) {
    n = ::read(file.get(), key + size, sizeof key - size);
    if (n > 0) size += static_cast<std::size_t>(n);
  }
  const std::string mend =
      "a file of 32 random bytes, the same on all hosts, that the program can "
      "read: head -c 32 /dev/urandom > FILE";
  struct stat info {};
  if (n < 0) {
    findings->Bad("key file",
                  fmt::format("RCSOCK_KEY_FILE={}: {}: no RDMA lanes", path,
                              std::strerror(errno)),
                  mend);
  } else if (size < base::kLeastKey) {
    findings->Bad("key file",
                  fmt::format("{} has {} bytes, and {} are needed: no RDMA "
                              "lanes",
                              path, size, base::kLeastKey),
                  mend);
  } else if (::fstat(file.get(), &info) == 0 && (info.st_mode & S_IROTH) != 0) {
    findings->Warn("key file", fmt::format("every user can read {}", path),
                   fmt::format("chmod o= {}", path));
  } else if (size > kMost) {
    findings->Warn("key file",
                   fmt::format("of {} the first {} bytes count", path, kMost));
  } else {
    findings->Good("key file", fmt::format("{}, {} bytes", path, size));
  }
}

bool ExamineHost(Findings* findings) {
  utsname system{};
  ::uname(&system);
  findings->Note(
      "host",
      fmt::format(
          "{}, Linux {}, {} CPU{}", system.nodename, system.release,
          ::sysconf(_SC_NPROCESSORS_ONLN),
          ::sysconf(_SC_NPROCESSORS_ONLN) == 1 ? ": nothing spins here" : "s"));
  ExamineNamespaces(findings);
  ExamineLimits(findings);
  if (!verbs::AnyDevice()) {
    findings->Note("devices",
                   "no RDMA device: lanes to other hosts are not possible; "
                   "those on this host need none",
                   "an HCA with its driver; or, to try --lanes=rdma in "
                   "software: rdma link add rxe0 type rxe netdev eth0");
    return false;
  }
  verbs::Error error;
  if (!verbs::Load(&error)) {
    findings->Bad("libraries", "librdmacm or libibverbs is not installed",
                  "apt install librdmacm1 ibverbs-providers");
    return false;
  }
  findings->Good("libraries", "librdmacm and libibverbs are there");
  ExamineAccess(findings);
  ExamineMemlock(findings);
  return true;
}

std::string HostText(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    ::inet_ntop(AF_INET,
                &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text,
                sizeof text);
  } else {
    ::inet_ntop(AF_INET6,
                &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text,
                sizeof text);
  }
  return text;
}

}  // namespace rcsock::tools
