#ifndef RCSOCK_TESTS_POSIX_BULK_H_
#define RCSOCK_TESTS_POSIX_BULK_H_

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/posix/pair.h"

// Much data in pieces of varying size, and every byte of it looked at.
namespace pair {

inline void SendBulk(int fd, std::uint64_t seed, std::uint64_t total) {
  Random random{seed};
  std::vector<char> buffer(200'000);
  for (std::uint64_t at = 0; at < total;) {
    const std::size_t most = random.Below(4) == 0 ? buffer.size() : 3000;
    const std::size_t n =
        std::min<std::uint64_t>(1 + random.Below(most), total - at);
    Pattern(seed, at, buffer.data(), n);
    SendAll(fd, buffer.data(), n);
    at += n;
  }
}

inline void RecvBulk(int fd, std::uint64_t seed, std::uint64_t total) {
  Random random{seed + 1};
  std::vector<char> buffer(200'000);
  for (std::uint64_t at = 0; at < total;) {
    const std::size_t want =
        std::min<std::uint64_t>(1 + random.Below(buffer.size()), total - at);
    const ssize_t n = ::recv(fd, buffer.data(), want, 0);
    if (n <= 0)
      Fail("recv at %llu: %zd %s", static_cast<unsigned long long>(at), n,
           ErrorName(errno));
    if (!IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
      Fail("wrong bytes near %llu", static_cast<unsigned long long>(at));
    }
    at += static_cast<std::uint64_t>(n);
  }
}

// The same in even pieces; there must be so much.
inline void SendEvenly(int fd, std::uint64_t seed, std::size_t total) {
  std::vector<char> buffer(70'000);
  for (std::size_t at = 0; at < total;) {
    const std::size_t n = std::min(buffer.size(), total - at);
    Pattern(seed, at, buffer.data(), n);
    SendAll(fd, buffer.data(), n);
    at += n;
  }
}

inline void RecvEvenly(int fd, std::uint64_t seed, std::size_t total) {
  std::vector<char> buffer(50'000);
  for (std::size_t at = 0; at < total;) {
    const std::size_t n = std::min(buffer.size(), total - at);
    RecvAll(fd, buffer.data(), n);
    CHECK_THAT(IsPattern(seed, at, buffer.data(), n));
    at += n;
  }
}

}  // namespace pair

#endif  // RCSOCK_TESTS_POSIX_BULK_H_
