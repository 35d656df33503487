#ifndef RCSOCK_TESTS_BENCH_PATTERN_H_
#define RCSOCK_TESTS_BENCH_PATTERN_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/bench/sample.h"

// The patterns that sockets.cc and verbs.cc have in common, so that their
// figures can stand side by side.  Both ends are given the same one.

namespace bench {

// What a stream is received into, again and again.
constexpr std::size_t kSinkBuffer = 256 << 10;

struct Pattern {
  // pingpong: one message at a time, there and back, over the connections in
  // turn.  oneway: a stream of messages, over the connections in turn.
  std::string kind = "pingpong";
  std::size_t size = 64;
  int connections = 1;
  std::int64_t count = 1000;  // measured messages, over all connections
  bool spin = false;
  double limit = 60;  // seconds after which the program is killed

  bool oneway() const { return kind == "oneway"; }
  // On each connection; the warm-up comes first.
  std::int64_t WarmUpEach() const;
  std::int64_t MeasuredEach() const;
  std::int64_t WarmUp() const { return WarmUpEach() * connections; }
  // Over all connections.
  Steps RoundTrips() const { return StepsOf(count, WarmUp()); }
};

void AddPattern(CLI::App* app, Pattern* pattern);

// A process that hangs must not hang who waits for it: SIGALRM ends it.
void Limit(const Pattern& pattern);

// Tells who started the server that a client can connect.
void SayListening();

// A system call that nothing else makes: count_syscalls counts between two.
// Both ends call it after the warm-up, and when all messages have been
// exchanged.
void Mark();
// The server's, which is told of each round trip (or each step of the stream:
// every connection takes one from the warm-up, and one at the end).
class Marks {
 public:
  explicit Marks(const Pattern& pattern);
  void Next();

 private:
  std::int64_t first_;
  std::int64_t last_;
  std::int64_t seen_ = 0;
};

// One line of JSON.
void PrintRoundTrips(const char* program, const Pattern& pattern, Cost cost);
void PrintOneWay(const char* program, const Pattern& pattern,
                 std::int64_t messages, std::int64_t ns);

}  // namespace bench

#endif  // RCSOCK_TESTS_BENCH_PATTERN_H_
