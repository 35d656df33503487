// A connection whose queue pair goes into error in the midst of what it moves,
// both ways at once: nothing of that is to be seen.
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kLength = 16 << 20;
constexpr int kRounds = 2;

// (Over TCP there are none, nor is there who breaks them.)
void Break() {
  const auto all =
      reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "break_qps"));
  if (all != nullptr) std::fprintf(stderr, "broken: %d\n", all());
}

// Both ways; `breaks` when a third of it has come.
void Move(int fd, int round, bool breaks) {
  const auto seed = static_cast<std::uint64_t>(2 * round);
  std::thread writer([fd, seed] {
    std::vector<char> text(100'000);
    for (std::size_t at = 0; at < kLength; at += text.size()) {
      const std::size_t n = std::min(text.size(), kLength - at);
      Pattern(seed + (IsClient() ? 1 : 0), at, text.data(), n);
      SendAll(fd, text.data(), n);
    }
  });
  std::vector<char> text(70'000);
  for (std::size_t at = 0; at < kLength; at += text.size()) {
    const std::size_t n = std::min(text.size(), kLength - at);
    RecvAll(fd, text.data(), n);
    CHECK_THAT(IsPattern(seed + (IsClient() ? 0 : 1), at, text.data(), n));
    if (breaks && at >= kLength / 3) {
      Break();
      breaks = false;
    }
  }
  writer.join();
  Log("round %d", round);
}

// By one end, then by the other; each finds a lane there.
void Rounds(int fd) {
  for (int i = 0; i < kRounds; ++i) {
    if (i > 0) Warm(fd);
    Move(fd, i, IsClient() == (i == 0));
    Barrier();
  }
  ::shutdown(fd, SHUT_WR);
  LogDrain(fd);
}

Case broken("broken_amid_bulk", Rounds, Rounds, {.seconds = 120});

}  // namespace
