#include "lib/verbs/library_copy.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "lib/base/unique_fd.h"

namespace rcsock::verbs {
namespace {

// A process, its child, that child's child, and so on.
constexpr int kGenerations = 64;

bool CopyAll(int from, int to) {
  for (;;) {
    const long n = ::syscall(SYS_sendfile, to, from, nullptr, 1 << 20);
    if (n <= 0) return n == 0;
  }
}

}  // namespace

void* OpenCopy(void* library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map->l_name == nullptr) {
    return nullptr;
  }
  const base::UniqueFd file(base::OpenHigh([map] {
    return ::syscall(SYS_openat, AT_FDCWD, map->l_name, O_RDONLY | O_CLOEXEC);
  }));
  const base::UniqueFd copy(base::OpenHigh([] {
    return ::syscall(SYS_memfd_create, "librdmacm (rcsock)", MFD_CLOEXEC);
  }));
  if (!file.ok() || !copy.ok() || !CopyAll(file.get(), copy.get())) {
    return nullptr;
  }
  // The loader also knows a library by the name that it was opened by, and a
  // parent may have used this number. So each generation has a longer name.
  char path[32 + 2 * kGenerations] = "/proc/self/";
  for (int i = 0; i < kGenerations; ++i) {
    const std::size_t end = std::strlen(path);
    std::snprintf(path + end, sizeof path - end, "fd/%d", copy.get());
    if (::dlopen(path, RTLD_NOW | RTLD_NOLOAD) == nullptr) {
      return ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    std::snprintf(path + end, sizeof path - end, "./");
  }
  return nullptr;
}

}  // namespace rcsock::verbs
