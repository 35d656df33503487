#include "lib/base/first_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/start_data.h"

namespace rcsock::base {
namespace {

struct Root {
  dev_t device;
  ino_t inode;
};
RCSOCK_START_DATA constinit Root first_root{};
RCSOCK_START_DATA constinit bool known = false;

}  // namespace

[[gnu::cold]] bool InFirstRoot() {
  struct stat status {};
  const bool found = ::syscall(SYS_newfstatat, AT_FDCWD, "/", &status, 0) == 0;
  if (!known) first_root = {status.st_dev, status.st_ino};
  known = true;
  return found && status.st_ino == first_root.inode &&
         status.st_dev == first_root.device;
}

[[gnu::cold]] void KnowFirstRoot() {
  if (!known) InFirstRoot();
}

}  // namespace rcsock::base
