#ifndef RCSOCK_TESTS_POSIX_UNREAD_H_
#define RCSOCK_TESTS_POSIX_UNREAD_H_

#include <poll.h>
#include <sys/ioctl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/posix/pair.h"

// What inherit and inherit_exec have in common: one end says more than the
// other reads.
namespace pair {

inline constexpr std::uint64_t kSeed = 77;
inline constexpr std::size_t kPiece = 16;
inline constexpr std::size_t kPieces = 150;
inline constexpr std::size_t kTotal = kPiece * kPieces;

// The server's half: says kTotal bytes that the client does not read meanwhile.
// With pauses, so that the connection changes its path somewhere among them:
// some are read ahead from TCP, some lie in a ring.
inline void SayUnread(int fd, std::size_t pieces = kPieces) {
  char text[kPiece];
  RecvAll(fd, text, 1);
  for (std::size_t i = 0; i < pieces; ++i) {
    Pattern(kSeed, i * kPiece, text, kPiece);
    SendAll(fd, text, kPiece);
    if (i < 100) ::poll(nullptr, 0, 1);
  }
}

// The client's half; returns when all is said.
inline void LetSay(int fd, std::size_t pieces = kPieces) {
  SendAll(fd, "x", 1);
  Barrier();
  int there = 0;
  while (there < static_cast<int>(pieces * kPiece)) {
    CHECK_THAT(::ioctl(fd, FIONREAD, &there) == 0);
    ::poll(nullptr, 0, 1);
  }
  Log("all is there");
}

inline void Expect(int fd, std::size_t from, std::size_t count) {
  std::vector<char> text(count);
  RecvAll(fd, text.data(), count);
  if (!IsPattern(kSeed, from, text.data(), count)) Fail("not these bytes");
}

inline void ServerThenEcho(int fd) {
  SayUnread(fd);
  Barrier();
  char text[4];
  RecvAll(fd, text, 4);
  SendAll(fd, text, 4);
  LogDrain(fd);
}

inline void PingPong(int fd) {
  char text[4] = {};
  SendAll(fd, "ping", 4);
  RecvAll(fd, text, 4);
  Log("%.4s", text);
}

}  // namespace pair

#endif  // RCSOCK_TESTS_POSIX_UNREAD_H_
