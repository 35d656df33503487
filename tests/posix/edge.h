#ifndef RCSOCK_TESTS_POSIX_EDGE_H_
#define RCSOCK_TESTS_POSIX_EDGE_H_

#include <sys/mman.h>

#include <cstddef>

#include "tests/posix/pair.h"

namespace edge {

// So many good bytes end where others begin that are not good.
constexpr std::size_t kRoom = std::size_t{1} << 20;
// In place of a protection.
constexpr int kHole = -1;

struct Edge {
  explicit Edge(int protection) {
    // Far from where others are put, so that nobody comes into the hole.
    void* const far = reinterpret_cast<void*>(0x10'0000'0000);
    void* const at = ::mmap(far, 2 * kRoom, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_THAT(at != MAP_FAILED);
    end = static_cast<char*>(at) + kRoom;
    if (protection < 0) {
      CHECK_THAT(::munmap(end, kRoom) == 0);
    } else {
      CHECK_THAT(::mprotect(end, kRoom, protection) == 0);
    }
  }
  ~Edge() { ::munmap(end - kRoom, 2 * kRoom); }
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;
  char* end;
};

inline const char* Name(int protection) {
  return protection == kHole       ? "hole"
         : protection == PROT_NONE ? "none"
                                   : "read-only";
}

}  // namespace edge

#endif  // RCSOCK_TESTS_POSIX_EDGE_H_
