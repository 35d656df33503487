#include "lib/base/direct.h"

#include <gnu/libc-version.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/base/no_cancel.h"
#include "lib/base/resolve.h"
#include "lib/base/start_data.h"

namespace rcsock::direct {

RCSOCK_START_DATA constinit std::atomic<bool> brief_of_libc{false};

int CloseByOther(int fd) {
  const base::NoCancel no_cancel;
  return real::close(fd);
}

long Failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}

namespace {

// The address range of libc. dladdr() would search all its symbols, and
// dlopen() allocate: nearly every process gets here at its start.
struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};
int FindLibc(dl_phdr_info* info, std::size_t, void* found) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(&::gnu_get_libc_version);
  Range all{UINTPTR_MAX, 0};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    all.begin = std::min(all.begin, begin);
    all.end = std::max(all.end, begin + part.p_memsz);
  }
  if (address < all.begin || address >= all.end) return 0;
  *static_cast<Range*>(found) = all;
  return 1;
}

}  // namespace

[[gnu::cold]] bool AllOfLibc() {
  Range libc;
  const real::SignalsBlocked blocked;
  if (::dl_iterate_phdr(&FindLibc, &libc) == 0) return false;
  const auto of_libc = [&libc](auto** slot, const char* name) {
    void* next =
        reinterpret_cast<void*>(__atomic_load_n(slot, __ATOMIC_ACQUIRE));
    if (next == nullptr) {
      next = real::ResolveBlocked(reinterpret_cast<void**>(slot), name);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(next);
    return (address >= libc.begin && address < libc.end) ||
           real::StandsInForLibc(next);
  };
#define LEFT_OUT(name, number)
#define OF_LIBC(name, number) of_libc(&real::table::name, #name)&&
  brief_of_libc.store(RCSOCK_DIRECT_CALLS(LEFT_OUT, OF_LIBC) true,
                      std::memory_order_relaxed);
  return RCSOCK_DIRECT_CALLS(OF_LIBC, LEFT_OUT) true;
#undef OF_LIBC
#undef LEFT_OUT
}

}  // namespace rcsock::direct
