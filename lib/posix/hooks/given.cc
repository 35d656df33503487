#include "lib/posix/hooks/given.h"

#include <linux/bpf.h>
#include <linux/nbd.h>
#include <linux/netlink.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/base/guard.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

constexpr unsigned long kAttachToKcm = 0x89e0;  // SIOCKCMATTACH
// SECCOMP_IOCTL_NOTIF_ADDFD gives the descriptor to another process.
constexpr unsigned long kAddToNotified = 0x40182103;
constexpr std::size_t kAddedAt = 12;
constexpr std::uint64_t kMostInBatch = 1 << 16;

template <class T>
bool Get(const void* at, T* to) {
  BeforeLooking();
  return !Null(at) && base::TryGet(to, at, sizeof *to);
}

void Give(std::int64_t number) {
  if (const SockAt given(static_cast<int>(number)); given) {
    given->way_back().Pin(base::Reason::kPinnedSyscall);
  }
}

const void* Pointer(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);
}

// The size of the values of a map of sockets; 0: it is another map.
std::uint32_t ValueSize(std::uint32_t map) {
  bpf_map_info info{};
  bpf_attr attributes{};
  attributes.info.bpf_fd = map;
  attributes.info.info_len = sizeof info;
  attributes.info.info = reinterpret_cast<std::uint64_t>(&info);
  if (::syscall(SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &attributes,
                sizeof attributes) != 0) {
    return sizeof(std::uint32_t);
  }
  const bool sockets = info.type == BPF_MAP_TYPE_SOCKMAP ||
                       info.type == BPF_MAP_TYPE_SOCKHASH ||
                       info.type == BPF_MAP_TYPE_REUSEPORT_SOCKARRAY;
  return sockets ? info.value_size : 0;
}

}  // namespace

void BeforeGivingIoctl(unsigned long request, const void* argument) {
  std::uint32_t number = 0;
  if (request == NBD_SET_SOCK) {
    Give(static_cast<int>(reinterpret_cast<std::intptr_t>(argument)));
  } else if (request == kAttachToKcm) {
    if (Get(argument, &number)) Give(number);
  } else if (request == kAddToNotified) {
    if (Get(static_cast<const std::byte*>(argument) + kAddedAt, &number)) {
      Give(number);
    }
  }
}

void BeforeBpf(long command, const void* attributes, unsigned long size) {
  if (command != BPF_MAP_UPDATE_ELEM && command != BPF_MAP_UPDATE_BATCH) return;
  const int saved = errno;
  // A shorter argument has zeros for the rest.
  bpf_attr what{};
  BeforeLooking();
  if (Null(attributes) ||
      !base::TryGet(&what, attributes,
                    std::min<std::size_t>(size, sizeof what))) {
    return;
  }
  const bool one = command == BPF_MAP_UPDATE_ELEM;
  const std::uint32_t length = ValueSize(one ? what.map_fd : what.batch.map_fd);
  const std::uint64_t count =
      one ? 1 : std::min<std::uint64_t>(what.batch.count, kMostInBatch);
  const std::uint64_t at = one ? what.value : what.batch.values;
  for (std::uint64_t i = 0; length != 0 && i < count; ++i) {
    std::uint32_t number = 0;
    if (!Get(Pointer(at + i * length), &number)) break;
    Give(number);
  }
  errno = saved;
}

void AfterNetlink(int protocol) {
  const int saved = errno;
  // Programs use the general protocol for many things.  They name connections
  // to this one module.
  if (protocol == NETLINK_ISCSI ||
      (protocol == NETLINK_GENERIC &&
       ::syscall(SYS_access, "/sys/module/nbd", F_OK) == 0)) {
    PinProcess(base::Reason::kRawCalls);
  }
  errno = saved;
}

}  // namespace rcsock::posix
