#include "lib/base/error_text.h"

#include <cerrno>

namespace rcsock::base {

const char* ErrorText(int error) {
  switch (error) {
    case EACCES:
      return "Permission denied";
    case EBADF:
      return "Bad file descriptor";
    case EDQUOT:
      return "Disk quota exceeded";
    case EFBIG:
      return "File too large";
    case EINVAL:
      return "Invalid argument";
    case EIO:
      return "Input/output error";
    case EISDIR:
      return "Is a directory";
    case ELOOP:
      return "Too many levels of symbolic links";
    case EMFILE:
    case ENFILE:
      return "Too many open files";
    case ENAMETOOLONG:
      return "File name too long";
    case ENODEV:
    case ENXIO:
      return "No such device";
    case ENOENT:
      return "No such file or directory";
    case ENOMEM:
      return "Cannot allocate memory";
    case ENOSPC:
      return "No space left on device";
    case ENOTDIR:
      return "Not a directory";
    case EPERM:
      return "Operation not permitted";
    case EPIPE:
      return "Broken pipe";
    case EROFS:
      return "Read-only file system";
    case ETXTBSY:
      return "Text file busy";
    default:
      return "an unusual error";
  }
}

}  // namespace rcsock::base
