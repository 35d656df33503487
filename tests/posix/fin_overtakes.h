#ifndef RCSOCK_TESTS_POSIX_FIN_OVERTAKES_H_
#define RCSOCK_TESTS_POSIX_FIN_OVERTAKES_H_

#include <cstddef>
#include <cstdint>

// What overtaken and its reader both know.
namespace overtaken {

constexpr std::size_t kPing = 8;
// Of the bytes (under::ByteAt).
constexpr std::uint64_t kSeed = 5;

}  // namespace overtaken

#endif  // RCSOCK_TESTS_POSIX_FIN_OVERTAKES_H_
