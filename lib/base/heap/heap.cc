// What the libraries allocate, with asio and the standard library in them,
// comes from pools of their own. The libraries do not use the program's heap: a
// signal handler that has interrupted malloc may call send(), close() or
// shutdown(). The operators are the library's alone: its version script hides
// them.

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>

#include "lib/base/critical.h"
#include "lib/base/pool.h"

// A sanitizer has its own operators.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace rcsock::base {
namespace {

// The head before each block: how many bytes a pool or a mapping has given, and
// how many of them lie before the head. The bytes after the head are aligned as
// new's result has to be.
struct alignas(__STDCPP_DEFAULT_NEW_ALIGNMENT__) Head {
  std::size_t bytes;
  std::size_t before;
};

// Powers of two.
constexpr std::size_t kLeast = 64;
constinit Pool pools[] = {
    Pool(kLeast),      Pool(kLeast << 1), Pool(kLeast << 2), Pool(kLeast << 3),
    Pool(kLeast << 4), Pool(kLeast << 5), Pool(kLeast << 6), Pool(kLeast << 7),
    Pool(kLeast << 8), Pool(kLeast << 9), Pool(kLeast << 10)};
constexpr std::size_t kMost = kLeast << (std::size(pools) - 1);

Pool& PoolOf(std::size_t bytes) {
  int at = 0;
  while (kLeast << at < bytes) ++at;
  return pools[at];
}

void* Take(std::size_t size, std::size_t align = alignof(Head)) noexcept {
  std::size_t bytes = 0;
  // A pool's memory is aligned as a head is.
  const std::size_t most_before = align - alignof(Head);
  if (__builtin_add_overflow(size, sizeof(Head) + most_before, &bytes)) {
    return nullptr;
  }
  void* block = nullptr;
  if (bytes <= kMost) {
    // While the pool's latch is held, no handler of the program's runs.
    Critical critical;
    block = PoolOf(bytes).Take();
  } else {
    const int saved = errno;
    block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) block = nullptr;
    errno = saved;
  }
  if (block == nullptr) return nullptr;
  const auto first = reinterpret_cast<std::uintptr_t>(block) + sizeof(Head);
  const std::size_t before = -first & (align - 1);
  auto* head = reinterpret_cast<Head*>(static_cast<char*>(block) + before);
  head->bytes = bytes;
  head->before = before;
  return head + 1;
}

void* TakeOrThrow(std::size_t size, std::size_t align = alignof(Head)) {
  void* at = Take(size, align);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

void Give(void* at) noexcept {
  if (at == nullptr) return;
  Head* head = static_cast<Head*>(at) - 1;
  const std::size_t bytes = head->bytes;
  void* block = reinterpret_cast<char*>(head) - head->before;
  if (bytes <= kMost) {
    Critical critical;
    PoolOf(bytes).Give(block);
  } else {
    const int saved = errno;
    ::munmap(block, bytes);
    errno = saved;
  }
}

}  // namespace
}  // namespace rcsock::base

void* operator new(std::size_t size) { return rcsock::base::TakeOrThrow(size); }
void* operator new[](std::size_t size) { return ::operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return rcsock::base::Take(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return rcsock::base::Take(size);
}
void operator delete(void* at) noexcept { rcsock::base::Give(at); }
void operator delete[](void* at) noexcept { rcsock::base::Give(at); }
void operator delete(void* at, std::size_t) noexcept { rcsock::base::Give(at); }
void operator delete[](void* at, std::size_t) noexcept {
  rcsock::base::Give(at);
}
void operator delete(void* at, const std::nothrow_t&) noexcept {
  rcsock::base::Give(at);
}
void operator delete[](void* at, const std::nothrow_t&) noexcept {
  rcsock::base::Give(at);
}

// For more alignment than usual.
namespace {
constexpr std::size_t Bytes(std::align_val_t align) {
  const auto bytes = static_cast<std::size_t>(align);
  return bytes < __STDCPP_DEFAULT_NEW_ALIGNMENT__
             ? __STDCPP_DEFAULT_NEW_ALIGNMENT__
             : bytes;
}
}  // namespace
void* operator new(std::size_t size, std::align_val_t align) {
  return rcsock::base::TakeOrThrow(size, Bytes(align));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return ::operator new(size, align);
}
void* operator new(std::size_t size, std::align_val_t align,
                   const std::nothrow_t&) noexcept {
  return rcsock::base::Take(size, Bytes(align));
}
void* operator new[](std::size_t size, std::align_val_t align,
                     const std::nothrow_t&) noexcept {
  return rcsock::base::Take(size, Bytes(align));
}
void operator delete(void* at, std::align_val_t) noexcept {
  rcsock::base::Give(at);
}
void operator delete[](void* at, std::align_val_t) noexcept {
  rcsock::base::Give(at);
}
void operator delete(void* at, std::size_t, std::align_val_t) noexcept {
  rcsock::base::Give(at);
}
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept {
  rcsock::base::Give(at);
}
void operator delete(void* at, std::align_val_t,
                     const std::nothrow_t&) noexcept {
  rcsock::base::Give(at);
}
void operator delete[](void* at, std::align_val_t,
                       const std::nothrow_t&) noexcept {
  rcsock::base::Give(at);
}

#endif
