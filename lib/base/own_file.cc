#include "lib/base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "lib/base/error_text.h"
#include "lib/base/unique_fd.h"

namespace rcsock::base {
namespace {

bool NamesADescriptor(std::string_view path) {
  return path.starts_with("/proc/") || path.starts_with("/dev/fd/") ||
         path == "/dev/stdout" || path == "/dev/stderr";
}

// Returns null if the file may be written, or the reason why not.
const char* Check(int fd) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return ErrorText(errno);
  if (S_ISCHR(status.st_mode)) return nullptr;
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    return "it is no regular file";
  }
  if (status.st_uid != ::geteuid()) return "another user has made it";
  if (status.st_nlink != 1) return "it has several names";
  return nullptr;
}

}  // namespace

int OpenToWrite(const char* path, bool append, const char** why) {
  const bool own = NamesADescriptor(path);
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK |
                    (append ? O_APPEND : 0) | (own ? 0 : O_NOFOLLOW);
  const int fd = OpenHigh([path, flags] {
    return ::syscall(SYS_openat, AT_FDCWD, path, flags, 0644);
  });
  if (fd < 0) {
    *why = errno == ELOOP ? "it is a symbolic link" : ErrorText(errno);
    return -1;
  }
  *why = own ? nullptr : Check(fd);
  if (*why != nullptr) {
    CloseRaw(fd);
    return -1;
  }
  if (!append) ::syscall(SYS_ftruncate, fd, 0);
  return fd;
}

}  // namespace rcsock::base
