#ifndef RCSOCK_TESTS_POSIX_COMMON_H_
#define RCSOCK_TESTS_POSIX_COMMON_H_

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>

// What the two kinds of test programs here, pair and under, have in common.
namespace posix_test {

inline std::uint64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

// Deterministic bytes: what stands at `offset` of stream `seed`.
inline std::uint8_t ByteAt(std::uint64_t seed, std::uint64_t offset) {
  std::uint64_t x = (offset >> 3) * 0x9e3779b97f4a7c15ull + seed;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return static_cast<std::uint8_t>(x >> (8 * (offset & 7)));
}

struct Random {
  std::uint64_t state;
  std::uint64_t Next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint64_t Below(std::uint64_t n) { return Next() % n; }
};

// PAIR_ADDRESS: the address of an RDMA device of this host, in its place.
inline sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const char* other = std::getenv("PAIR_ADDRESS");
  if (other == nullptr || inet_pton(AF_INET, other, &address.sin_addr) != 1) {
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

}  // namespace posix_test

#endif  // RCSOCK_TESTS_POSIX_COMMON_H_
