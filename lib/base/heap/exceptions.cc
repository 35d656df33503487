// The memory of exceptions that the preload throws. libstdc++ would take 72 KiB
// of the program's heap for them in each process, and call the program's malloc
// for each exception.
//
// Only for a library that has libstdc++ within it: these functions replace all
// those of one file of libstdc++ (eh_alloc.cc).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

namespace {

// What libstdc++ has before each exception: __cxa_refcounted_exception, and
// __cxa_dependent_exception. GCC's ABI for x86-64 fixes both sizes.
constexpr std::size_t kHead = 128;
constexpr std::size_t kDependent = 112;

// For when no memory is left.
constexpr std::size_t kSpareBytes = 512;
constexpr unsigned kSpares = 8;
alignas(16) constinit char spares[kSpares][kSpareBytes] = {};
constinit std::atomic<unsigned> used{0};  // a bit for each

void* TakeSpare(std::size_t size) {
  if (size > kSpareBytes) return nullptr;
  for (unsigned i = 0; i < kSpares; ++i) {
    const unsigned bit = 1u << i;
    if ((used.fetch_or(bit, std::memory_order_acquire) & bit) == 0) {
      return spares[i];
    }
  }
  return nullptr;
}

void* Take(std::size_t size, std::size_t zeroed) noexcept {
  void* at = ::operator new(size, std::nothrow);
  if (at == nullptr) at = TakeSpare(size);
  if (at == nullptr) std::terminate();
  return std::memset(at, 0, zeroed);
}

void Give(void* at) noexcept {
  const auto offset = reinterpret_cast<std::uintptr_t>(at) -
                      reinterpret_cast<std::uintptr_t>(spares);
  if (offset >= sizeof spares) return ::operator delete(at);
  used.fetch_and(~(1u << (offset / kSpareBytes)), std::memory_order_release);
}

}  // namespace

extern "C" {

void* __cxa_allocate_exception(std::size_t size) noexcept;
void __cxa_free_exception(void* thrown) noexcept;
void* __cxa_allocate_dependent_exception() noexcept;
void __cxa_free_dependent_exception(void* dependent) noexcept;

void* __cxa_allocate_exception(std::size_t size) noexcept {
  return static_cast<char*>(Take(size + kHead, kHead)) + kHead;
}

void __cxa_free_exception(void* thrown) noexcept {
  Give(static_cast<char*>(thrown) - kHead);
}

void* __cxa_allocate_dependent_exception() noexcept {
  return Take(kDependent, kDependent);
}

void __cxa_free_dependent_exception(void* dependent) noexcept {
  Give(dependent);
}

}  // extern "C"

namespace __gnu_cxx {
void __freeres();
// Gives back what a leak checker would report: there is nothing.
void __freeres() {}
}  // namespace __gnu_cxx
