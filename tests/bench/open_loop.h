#ifndef RCSOCK_TESTS_BENCH_OPEN_LOOP_H_
#define RCSOCK_TESTS_BENCH_OPEN_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/bench/net.h"

// What both ends of open_loop have.
namespace bench::open_loop {

struct Words {
  std::string_view request;
  std::string_view answer;
};
inline constexpr Words kRedis{"PING\r\n", "+PONG\r\n"};
inline constexpr Words kMemcached{"get none\r\n", "END\r\n"};

// A greedy connection sends this byte alone.
inline constexpr char kGreedyByte = 'g';
inline constexpr std::size_t kGreedyPiece = 16384;

struct Options {
  Ends ends;
  std::string unix_path;  // in place of the address
  std::string protocol = "redis";
  int connections = 1;
  double rate = 1000;  // 0: a closed loop
  double seconds = 2;
  double warm_up = 0.5;
  int settle = 32;  // round trips of each connection before the warm-up
  int peer = 0;
  int life = 0;  // requests of a connection; 0: no end
  bool pin = false;
  double fork_every = 0;  // seconds between the server's children; 0: none
  bool child_uses = false;
  int greedy = 0;
  unsigned seed = 7;
};

// Sends all that it is given, on a descriptor that does not block.  What finds
// no room goes when there is some.  Send and Flush return false at an error of
// the connection.
class Outbox {
 public:
  bool Send(int fd, std::string_view bytes);
  bool Flush(int fd);
  bool empty() const { return waits_.empty(); }
  void Clear() { waits_.clear(); }

 private:
  std::string waits_;
};

// Serves until the last connection is over; with lives, for ever.
void Serve(int listener, const Options& options);

}  // namespace bench::open_loop

#endif  // RCSOCK_TESTS_BENCH_OPEN_LOOP_H_
