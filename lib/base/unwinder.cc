#include "lib/base/unwinder.h"

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

RCSOCK_START_DATA constinit MakeReadyToThrow make_ready_to_throw = nullptr;

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
