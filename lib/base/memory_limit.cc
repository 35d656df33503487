#include "lib/base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "lib/base/file_text.h"

namespace rcsock::base {
namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

std::uint64_t NumberIn(const char* path) {
  char text[32];
  const std::string_view found = ReadStart(path, text, sizeof text);
  std::uint64_t number = kNone;
  // "max" is no number, and leaves kNone.
  std::from_chars(found.data(), found.data() + found.size(), number);
  return number;
}

// Returns the least limit of a group and of all groups above.
std::uint64_t OfGroups(const char* root, std::string_view group,
                       const char* file) {
  std::uint64_t least = kNone;
  for (;;) {
    char path[1024];
    std::snprintf(path, sizeof path, "%s%.*s/%s", root,
                  static_cast<int>(group.size()), group.data(), file);
    least = std::min(least, NumberIn(path));
    const std::size_t slash = group.rfind('/');
    if (group.empty() || slash == group.npos) return least;
    group = group.substr(0, slash);
  }
}

}  // namespace

std::uint64_t MemoryLimit() {
  std::uint64_t limit = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  char text[2048];
  std::string_view left =
      ReadStart("/proc/thread-self/cgroup", text, sizeof text);
  while (!left.empty()) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    const std::size_t group = line.rfind(':');
    if (group == line.npos) continue;
    const std::string_view name = line.substr(group + 1);
    // "0::/path" of the second version, "9:memory:/path" of the first one.
    if (line.starts_with("0::")) {
      limit = std::min(limit, OfGroups("/sys/fs/cgroup", name, "memory.max"));
    } else if (line.substr(0, group).find(":memory") != line.npos) {
      limit = std::min(limit, OfGroups("/sys/fs/cgroup/memory", name,
                                       "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace rcsock::base
