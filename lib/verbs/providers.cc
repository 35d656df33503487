#include "lib/verbs/providers.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lib/base/file_text.h"

namespace rcsock::verbs {
namespace {

constexpr std::size_t kName = 64;
constexpr std::size_t kPath = 512;

bool StartsWith(const char* text, const char* with) {
  return std::strncmp(text, with, std::strlen(with)) == 0;
}

// Calls `take` for each name in a directory until it returns true.
template <typename Take>
bool AnyEntry(const char* path, Take&& take) {
  DIR* directory = ::opendir(path);
  if (directory == nullptr) return false;
  bool taken = false;
  while (const dirent* entry = taken ? nullptr : ::readdir(directory)) {
    taken = take(entry->d_name);
  }
  ::closedir(directory);
  return taken;
}

// Loads lib`driver`-rdmav34.so; the number is libibverbs' own affair.
bool LoadDriver(const char* directory, const char* driver) {
  if (*driver == '\0') return false;
  char begin[kName + 16];
  std::snprintf(begin, sizeof begin, "lib%s-rdmav", driver);
  return AnyEntry(directory, [directory, &begin](const char* name) {
    char path[kPath + 256];
    if (!StartsWith(name, begin) || std::strstr(name, ".so") == nullptr) {
      return false;
    }
    std::snprintf(path, sizeof path, "%s/%s", directory, name);
    return ::dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr;
  });
}

// By the device's name without its number: rxe0, mlx5_0, bnxt_re0.
bool LoadByName(const char* directory, const char* devices,
                const char* uverbs) {
  char path[2 * kPath];
  std::snprintf(path, sizeof path, "%s/%s/ibdev", devices, uverbs);
  char name[kName] = {};
  if (base::ReadStart(path, name, sizeof name - 1).empty()) return false;
  name[std::strcspn(name, "/\n")] = '\0';
  std::size_t length = std::strlen(name);
  while (length > 0 && std::strchr("0123456789_", name[length - 1])) --length;
  name[length] = '\0';
  return LoadDriver(directory, name);
}

// By the kernel's driver, if the device has been renamed: mlx5_core, efa.
bool LoadByDriver(const char* directory, const char* devices,
                  const char* uverbs) {
  char path[2 * kPath];
  char target[kPath];
  std::snprintf(path, sizeof path, "%s/%s/device/driver", devices, uverbs);
  const long n = ::syscall(SYS_readlink, path, target, sizeof target - 1);
  if (n <= 0) return false;
  target[n] = '\0';
  char* name = std::strrchr(target, '/');
  if (name == nullptr || std::strlen(++name) >= kName) return false;
  if (char* core = std::strstr(name, "_core")) *core = '\0';
  return LoadDriver(directory, name);
}

}  // namespace

DeviceDirectory::DeviceDirectory() {
  const char* root = ::secure_getenv("SYSFS_PATH");
  if (root == nullptr) root = "/sys";
  const int n =
      std::snprintf(path_, sizeof path_, "%s/class/infiniband_verbs", root);
  if (n < 0 || n >= static_cast<int>(sizeof path_)) path_[0] = '\0';
}

void LoadProviders(const void* function) {
  Dl_info found{};
  char directory[kPath];
  if (::dladdr(function, &found) == 0 || found.dli_fname == nullptr) return;
  const char* slash = std::strrchr(found.dli_fname, '/');
  if (slash == nullptr) return;
  const auto length = static_cast<int>(slash - found.dli_fname);
  const int n = std::snprintf(directory, sizeof directory, "%.*s/libibverbs",
                              length, found.dli_fname);
  if (n < 0 || n >= static_cast<int>(sizeof directory)) return;
  const DeviceDirectory devices;
  AnyEntry(devices.path(), [&](const char* uverbs) {
    if (StartsWith(uverbs, "uverbs") && std::strlen(uverbs) < kName &&
        !LoadByName(directory, devices.path(), uverbs)) {
      LoadByDriver(directory, devices.path(), uverbs);
    }
    return false;
  });
}

}  // namespace rcsock::verbs
