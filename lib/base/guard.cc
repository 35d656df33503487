#include "lib/base/guard.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdint>

namespace rcsock::base {

thread_local constinit bool tls_fault = false;

#if RCSOCK_GUARDS

namespace {

// Distances from the fields themselves: so the table needs no relocation.
struct Entry {
  std::int32_t instruction;
  std::int32_t fixup;
};
static_assert(sizeof(Entry) == 8);

std::uintptr_t From(const std::int32_t& distance) {
  return reinterpret_cast<std::uintptr_t>(&distance) +
         static_cast<std::uintptr_t>(static_cast<std::intptr_t>(distance));
}

}  // namespace

// The linker defines these two, from the section's name.
extern "C" {
[[gnu::visibility("hidden")]] extern const Entry __start_rcsock_guards[];
[[gnu::visibility("hidden")]] extern const Entry __stop_rcsock_guards[];
}

bool FixFault(void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto at = static_cast<std::uintptr_t>(registers[REG_RIP]);
  for (const Entry* entry = __start_rcsock_guards;
       entry != __stop_rcsock_guards; ++entry) {
    if (From(entry->instruction) == at) {
      registers[REG_RIP] = static_cast<greg_t>(From(entry->fixup));
      return true;
    }
  }
  return false;
}

bool ReadablePages(const void* at, std::size_t n) {
  const auto* const bytes = static_cast<const std::byte*>(at);
  for (std::size_t i = 0; i < n; i += kGuardPage) {
    if (!ReadableEnds(bytes + i, 1)) return false;
  }
  return true;
}

bool PutPages(void* to, const void* from, std::size_t n) {
  auto* const out = static_cast<std::byte*>(to);
  const auto* const in = static_cast<const std::byte*>(from);
  for (std::size_t i = 0; i < n; i += kGuardPage) {
    if (!PutEnds(out + i, in + i, 1)) return false;
  }
  return true;
}

#else

bool FixFault(void*) { return false; }

#endif

}  // namespace rcsock::base
