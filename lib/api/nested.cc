// An epoll set of rcsock's inside an event loop that is not rcsock's.

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lib/include/rcsock/rcsock.h"
#include "lib/posix/iomux/lookup_set.h"
#include "lib/posix/sys/identity.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace posix = rcsock::posix;

// As in control.cc.
#define RCSOCK_FORWARD(name, ...)                                        \
  if (posix::OwnFace() == posix::Face::kBehind) {                        \
    static const auto first =                                            \
        reinterpret_cast<decltype(&name)>(::dlsym(RTLD_DEFAULT, #name)); \
    if (first != nullptr && first != &name) return first(__VA_ARGS__);   \
    errno = EOPNOTSUPP;                                                  \
    return -1;                                                           \
  }

namespace {

// A set that rcsock does not follow has kernel descriptors only. The kernel
// says whether `set` is a set: asked for an event, with no memory to put it
// into, a set keeps its event.
bool IsSet(int set) {
  const int saved = errno;
  constexpr std::uintptr_t kNowhere = 8;
  if (::syscall(SYS_epoll_wait, set, kNowhere, 1, 0) >= 0 || errno == EFAULT) {
    errno = saved;
    return true;
  }
  return false;
}

}  // namespace

RCSOCK_EXPORT int rcs_epoll_look(int set, epoll_event* events, int capacity,
                                 int spin_us) {
  RCSOCK_FORWARD(rcs_epoll_look, set, events, capacity, spin_us)
  posix::EpollSet* found = posix::LookupSet(set);
  if (found == nullptr && !IsSet(set)) return -1;
  if (capacity <= 0 || spin_us < 0 || events == nullptr) {
    errno = events == nullptr && capacity > 0 ? EFAULT : EINVAL;
    return -1;
  }
  if (found == nullptr) {
    errno = ENODATA;
    return -1;
  }
  return found->Look(events, capacity, static_cast<std::uint32_t>(spin_us));
}

RCSOCK_EXPORT int rcs_epoll_arm(int set) {
  RCSOCK_FORWARD(rcs_epoll_arm, set)
  posix::EpollSet* found = posix::LookupSet(set);
  if (found == nullptr) return IsSet(set) ? 0 : -1;
  return found->ArmOutside() ? 0 : 1;
}

RCSOCK_EXPORT int rcs_epoll_disarm(int set) {
  RCSOCK_FORWARD(rcs_epoll_disarm, set)
  posix::EpollSet* found = posix::LookupSet(set);
  if (found == nullptr) return IsSet(set) ? 0 : -1;
  found->DisarmOutside();
  return 0;
}
