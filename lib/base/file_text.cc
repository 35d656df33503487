#include "lib/base/file_text.h"

#include <fcntl.h>

#include "lib/base/unique_fd.h"

namespace rcsock::base {

int OpenText(const char* path, int flags) {
  return OpenHigh([path, flags] {
    return ::syscall(SYS_openat, AT_FDCWD, path, flags | O_RDONLY | O_CLOEXEC,
                     0);
  });
}

std::string_view ReadStart(const char* path, char* text, std::size_t size) {
  const UniqueFd file(OpenText(path));
  if (!file.ok()) return {};
  const long n = ::syscall(SYS_read, file.get(), text, size);
  return {text, n > 0 ? static_cast<std::size_t>(n) : 0};
}

}  // namespace rcsock::base
