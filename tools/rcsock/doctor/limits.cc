#include "tools/rcsock/doctor/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

// The memory of 64 streams through shared memory: lib/lane/shm/layout.h.
constexpr std::uint64_t kSegmentBytes = std::uint64_t{40} << 20;
constexpr std::uint64_t kFewThreads = 16;
constexpr std::uint64_t kLittleMemory = std::uint64_t{64} << 20;

// Returns the number in a file.  Returns nothing for "max", or if there is
// none.
std::optional<std::uint64_t> NumberIn(const fs::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// The room that `max` leaves above `current` in this cgroup and all above it,
// at the tightest one.  `most` is the bound there, and `where` the directory
// that has it.
struct Room {
  std::uint64_t left = UINT64_MAX;
  std::uint64_t most = 0;
  std::string where;
};
Room RoomIn(const fs::path& mount, const std::string& group, const char* max,
            const char* current) {
  Room room;
  for (fs::path at = mount / fs::path(group).relative_path();;
       at = at.parent_path()) {
    const auto most = NumberIn(at / max);
    const auto used = NumberIn(at / current);
    if (most && used) {
      const std::uint64_t left = *most - std::min(*most, *used);
      // Version 1 says "no limit" by a very large number.
      if (*most < (std::uint64_t{1} << 60) && left < room.left) {
        room = {left, *most, (at / max).string()};
      }
    }
    if (at == mount || !at.has_relative_path()) return room;
  }
}

// Returns this process's group of version 2, or of a controller of version 1.
std::string GroupOf(const fs::path& proc, const std::string& controller) {
  std::ifstream file(proc / "self" / "cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (names == controller) return line.substr(second + 1);
  }
  return "/";
}

Room RoomOf(const fs::path& root, const std::string& controller,
            const char* max, const char* current, const char* old_max,
            const char* old_current) {
  const fs::path mount = root / "sys/fs/cgroup";
  const fs::path proc = root / "proc";
  const Room room = RoomIn(mount, GroupOf(proc, ""), max, current);
  const Room old = RoomIn(mount / controller, GroupOf(proc, controller),
                          old_max, old_current);
  return old.left < room.left ? old : room;
}

void ExamineThreads(const fs::path& root, Findings* findings) {
  const std::string what =
      "a process whose connections look for lanes has one thread more";
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  // The limit does not apply to root.
  if (::geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t used = ThreadsOf(root / "proc", ::geteuid());
    const std::uint64_t left = limit.rlim_cur - std::min(limit.rlim_cur, used);
    const std::string words = fmt::format(
        "this user has {} threads and may have {}: {}", used, limit.rlim_cur,
        left == 0 ? "none is left, and all stays on TCP" : what);
    const std::string mend =
        "ulimit -u unlimited, or LimitNPROC=infinity in the systemd unit";
    if (left == 0) {
      findings->Bad("threads", words, mend);
    } else if (left < kFewThreads) {
      findings->Warn("threads", words, mend);
    }
  }
  const Room room = RoomOf(root, "pids", "pids.max", "pids.current", "pids.max",
                           "pids.current");
  if (room.left >= kFewThreads) return;
  const std::string words = fmt::format(
      "{} allows {} threads, {} are left: {}", room.where, room.most, room.left,
      room.left == 0 ? "all stays on TCP" : what);
  const std::string mend =
      "TasksMax=infinity in the systemd unit, docker run --pids-limit=-1";
  if (room.left == 0) {
    findings->Bad("threads", words, mend);
  } else {
    findings->Warn("threads", words, mend);
  }
}

std::string Mib(std::uint64_t bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

void ExamineMemory(const fs::path& root, Findings* findings) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  if (limit.rlim_cur < kSegmentBytes) {
    findings->Bad("file size",
                  fmt::format("files may have {} KiB, and shared memory for "
                              "shm lanes counts as one",
                              limit.rlim_cur >> 10),
                  "ulimit -f unlimited, or LimitFSIZE=infinity");
  }
  ::getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur < 8 * kSegmentBytes) {
    findings->Warn("address space",
                   fmt::format("a process may map {}; 64 streams on shm lanes "
                               "map {}",
                               Mib(limit.rlim_cur), Mib(kSegmentBytes)),
                   "ulimit -v unlimited, or LimitAS=infinity");
  }
  const Room room = RoomOf(root, "memory", "memory.max", "memory.current",
                           "memory.limit_in_bytes", "memory.usage_in_bytes");
  if (room.left < kLittleMemory) {
    findings->Warn(
        "memory",
        fmt::format("{} allows {}, {} are left; a busy stream takes up to 512 "
                    "KiB of shared memory, or what max_ring allows",
                    room.where, Mib(room.most), Mib(room.left)),
        "MemoryMax= in the systemd unit, docker run --memory; or a smaller "
        "max_ring in rcsock.conf");
  }
}

void ExamineDescriptors(Findings* findings) {
  // The descriptors that lib/rendezvous opens in a process.
  constexpr std::uint64_t kOwn = 64;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= 4 * kOwn) return;
  findings->Warn("descriptors",
                 fmt::format("a process may have {} open, and rcsock needs up "
                             "to {} of its own",
                             limit.rlim_cur, kOwn),
                 "ulimit -n 65536, or LimitNOFILE=65536");
}

}  // namespace

std::uint64_t ThreadsOf(const fs::path& proc, unsigned uid) {
  std::uint64_t threads = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc, error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "status");
    bool ours = false;
    for (std::string line; std::getline(file, line);) {
      std::uint64_t number = 0;
      const std::size_t at = line.find_first_of("0123456789");
      if (at == std::string::npos) continue;
      std::from_chars(line.data() + at, line.data() + line.size(), number);
      // The limit counts threads by real user.
      if (line.rfind("Uid:", 0) == 0) ours = number == uid;
      if (ours && line.rfind("Threads:", 0) == 0) threads += number;
    }
  }
  return threads;
}

void ExamineLimits(Findings* findings, const fs::path& root) {
  ExamineThreads(root, findings);
  ExamineMemory(root, findings);
  ExamineDescriptors(findings);
}

}  // namespace rcsock::tools
