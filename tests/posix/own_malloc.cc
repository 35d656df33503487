// A malloc like those that browsers bring along: it names its memory by prctl,
// with its lock held, the first time that anything asks for some.  So the first
// call of a program's life that is ours may come from within malloc, and must
// not ask for memory itself.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr std::size_t kAll = std::size_t{1} << 30;
constexpr std::size_t kHead = 16;

constinit std::atomic<bool> held{false};
constinit char* at = nullptr;

void* Take(std::size_t size, std::size_t align) {
  for (int spins = 0; held.exchange(true, std::memory_order_acquire);) {
    constexpr char kWhy[] = "malloc is entered again\n";
    if (++spins < 1'000'000'000) continue;
    (void)!::write(2, kWhy, sizeof kWhy - 1);
    ::_exit(9);
  }
  if (at == nullptr) {
    at = static_cast<char*>(::mmap(nullptr, kAll, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                   -1, 0));
    constexpr int kSetVma = 0x53564d41;
    ::prctl(kSetVma, 0, at, kAll, "own malloc");
  }
  if (align < kHead) align = kHead;
  const auto from = reinterpret_cast<std::uintptr_t>(at) + kHead;
  char* block = at + kHead + (align - from % align) % align;
  at = block + size;
  std::memcpy(block - sizeof size, &size, sizeof size);
  held.store(false, std::memory_order_release);
  return block;
}

}  // namespace

// (Nothing is given back: the program is short.)
extern "C" {
void* malloc(std::size_t size) { return Take(size, kHead); }
void free(void*) {}
void* calloc(std::size_t count, std::size_t size) {
  return Take(count * size, kHead);  // never used before
}
void* realloc(void* old, std::size_t size) {
  void* block = Take(size, kHead);
  if (old != nullptr) {
    std::size_t had;
    std::memcpy(&had, static_cast<char*>(old) - sizeof had, sizeof had);
    std::memcpy(block, old, had < size ? had : size);
  }
  return block;
}
void* memalign(std::size_t align, std::size_t size) {
  return Take(size, align);
}
void* aligned_alloc(std::size_t align, std::size_t size) {
  return Take(size, align);
}
int posix_memalign(void** to, std::size_t align, std::size_t size) {
  *to = Take(size, align);
  return 0;
}
}
