#ifndef RCSOCK_LIB_BASE_ELF_HASH_H_
#define RCSOCK_LIB_BASE_ELF_HASH_H_

#include <cstdint>

namespace rcsock::base {

// The hash of a name that ELF files have beside symbols and versions. Always
// inline: image_symbols.cc may not call code that a sanitizer instruments.
[[gnu::always_inline]] constexpr std::uint32_t ElfHash(const char* name) {
  std::uint32_t hash = 0;
  for (; *name != '\0'; ++name) {
    hash = (hash << 4) + static_cast<unsigned char>(*name);
    const std::uint32_t high = hash & 0xf0000000;
    hash = (hash ^ (high >> 24)) & ~high;
  }
  return hash;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ELF_HASH_H_
