#include "lib/posix/iomux/lookup_set.h"

#include <cerrno>

#include "lib/posix/fd/table.h"
#include "lib/posix/socket/hidden.h"

namespace rcsock::posix {

EpollSet* SettledSet(int fd) {
  File* file = Lookup(fd);
  return file != nullptr && file->kind == FileKind::kEpoll
             ? static_cast<EpollSet*>(file)
             : nullptr;
}

namespace {

// What the table asks of an epoll set.

EpollSet* AsSet(File* file) { return static_cast<EpollSet*>(file); }

void EvictSet(File* file, int fd, bool claimed) {
  ClearEntry(fd);
  if (claimed) return;
  AsSet(file)->LoseFd(fd);
  if (file->fds.fetch_sub(1) == 1) AsSet(file)->Free();
}

int CloseSet(File* file, bool last, int fd, const Successor& next) {
  EpollSet* const set = AsSet(file);
  set->LoseFd(fd);
  const int result = CloseNumber(fd, next, !last);
  const int saved = errno;
  if (last || set->fds.fetch_sub(1) == 1) set->Free();
  errno = saved;
  return result;
}

void RenumberSet(File* file, int fd, int other) {
  if (AsSet(file)->fd() == fd) AsSet(file)->Renumber(other);
}

constexpr FileOps kSetOps{
    .number = [](File*, int, bool) {},
    .refuse = [](File* file) { AsSet(file)->Free(); },
    .evict = &EvictSet,
    .before_close = [](File*) {},
    .close = &CloseSet,
    .end = nullptr,
    .renumber = &RenumberSet,
    .on_lane = [](const File*) { return false; },
    .reveal = &Reveal,
};

}  // namespace

void Bind(int fd, EpollSet* set) { Bind(fd, set, kSetOps); }

}  // namespace rcsock::posix
