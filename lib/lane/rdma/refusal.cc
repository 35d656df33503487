#include "lib/lane/rdma/refusal.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lib/base/file_text.h"

namespace rcsock::lane::rdma {
namespace {

// The most that one call pins, as far as a new lane goes: its queues.
constexpr std::size_t kOneCall = std::size_t{1} << 20;

bool AtMemlock() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return false;
  }
  char status[4096] = {};
  base::ReadStart("/proc/self/status", status, sizeof status - 1);
  return MayBeMemlock(status, limit.rlim_cur);
}

}  // namespace

bool MayBeMemlock(const char* status, std::size_t limit) {
  // What devices have pinned; the kernel compares this with the limit.
  const char* const at = std::strstr(status, "\nVmPin:");
  if (at == nullptr) return true;
  const std::size_t pinned =
      std::strtoul(at + std::strlen("\nVmPin:"), nullptr, 10) * 1024;
  // A process above the limit is one that the limit does not bind.
  return pinned <= limit && limit - pinned < kOneCall;
}

base::Reason ReasonOf(const verbs::Error& error) {
  switch (error.code) {
    case ENOMEM:
      if (error.call == nullptr ||
          (std::strncmp(error.call, "ibv_", 4) != 0 &&
           std::strcmp(error.call, "rdma_create_qp") != 0)) {
        return base::Reason::kNoMemory;
      }
      return AtMemlock() ? base::Reason::kMemlock : base::Reason::kDeviceFull;
    case EAGAIN:  // the limits of the rdma cgroup
      return base::Reason::kDeviceFull;
    default:
      return base::Reason::kRdmaError;
  }
}

}  // namespace rcsock::lane::rdma
