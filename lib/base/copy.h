#ifndef RCSOCK_LIB_BASE_COPY_H_
#define RCSOCK_LIB_BASE_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rcsock::base {

constexpr std::size_t kCacheLine = 64;

// memcpy in a loop of loads and stores.
void LoopCopy(std::byte* to, const std::byte* from, std::size_t n);

// memcpy by streaming stores, which go to memory past all caches. A fence after
// the call orders them before the stores that follow.
void StreamCopy(std::byte* to, const std::byte* from, std::size_t n);

// memcpy of a long piece. libc's has the processor move the bytes (rep movsb).
// If the source is in no near cache and the target begins inside a line, rep
// movsb is half as fast as a loop. Every buffer of malloc's begins inside a
// line.
inline void LongCopy(std::byte* to, const std::byte* from, std::size_t n) {
  if (reinterpret_cast<std::uintptr_t>(to) % kCacheLine == 0) {
    std::memcpy(to, from, n);
  } else {
    LoopCopy(to, from, n);
  }
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_COPY_H_
