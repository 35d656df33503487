#include "lib/base/sealed_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace rcsock::base {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

// Raw system calls, since the preload interposes the names.
UniqueFd CreateSealed(const char* name, std::size_t size, Seals seals) {
  // Beyond this limit ftruncate sends SIGXFSZ, which would end the program.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) {
    errno = EFBIG;
    return UniqueFd();
  }
  UniqueFd fd(OpenHigh([&] {
    return ::syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }));
  if (!fd.ok()) return fd;
  const int all = kSizeSeals | (seals == Seals::kNoMoreSeals ? F_SEAL_SEAL : 0);
  if (::syscall(SYS_ftruncate, fd.get(), size) != 0 ||
      ::syscall(SYS_fcntl, fd.get(), F_ADD_SEALS, all) != 0) {
    fd.reset();
  }
  return fd;
}

std::size_t SealedSize(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid()) {
    return 0;
  }
  constexpr int kNeeded = kSizeSeals | F_SEAL_SEAL;
  const long seals = ::syscall(SYS_fcntl, fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) return 0;
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace rcsock::base
