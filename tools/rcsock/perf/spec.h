#ifndef RCSOCK_TOOLS_RCSOCK_PERF_SPEC_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_SPEC_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace rcsock::perf {

// What is measured.
enum class Mode {
  kStream,    // bytes, one way or both
  kMessages,  // round trips: one connection, several, or very many
  kShort,     // connections that carry one round trip each
};

enum class Transport { kTcp, kShm, kRdma, kAuto, kVerbs };

enum class Direction { kForward, kReverse, kBoth };

const char* Name(Mode mode);
const char* Name(Transport transport);
const char* Name(Direction direction);
// Returns true and sets *transport, or returns false if the name is unknown.
bool FromName(const std::string& name, Transport* transport);

// Returns true if the measuring processes run under the preload.
bool UnderRcsock(Transport transport);

// One run, as both ends get it.
struct Spec {
  Mode mode = Mode::kStream;
  Transport transport = Transport::kAuto;
  Direction direction = Direction::kForward;  // kStream
  double seconds = 10;
  std::uint64_t bytes = 0;         // kStream: in place of `seconds`; 0: unset
  std::uint64_t size = 128 << 10;  // of a message
  std::uint64_t connections = 1;   // kShort: threads that make them
  std::uint64_t active = 1;        // kMessages: round trips under way
  // kMessages: round trips that begin in a second, at random times, whether or
  // not those before have ended.  0: each begins when another one has ended.
  double rate = 0;
  double settle = 3;    // most seconds to wait for the lane
  bool traced = false;  // count system calls
  // The CPU that each end's measuring process is bound to.  -1: any.
  int client_cpu = -1;
  int server_cpu = -1;
  // kStream: the GPU whose memory both ends have the bytes in.  -1: the host's.
  int gpu = -1;

  // Returns true if each connection has a thread. Otherwise one epoll loop
  // serves all.
  bool Threads() const;
  // Bytes that one connection sends in one direction.  0: until the time is up.
  std::uint64_t BytesEach() const;
  // Returns why the transport cannot do it, or "".
  std::string WhyNot() const;
};

// Each option's bounds, for the command line and for what a client asks.
constexpr double kMinSeconds = 0.05;
constexpr double kMaxSeconds = 86400;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 50;
constexpr std::uint64_t kMaxSize = 16 << 20;
constexpr std::uint64_t kMaxParallel = 256;
constexpr std::uint64_t kMaxConnections = 100000;
constexpr std::uint64_t kMaxActive = 4096;
constexpr int kMaxCpu = 8191;
constexpr int kMaxGpu = 255;
constexpr std::uint64_t kMaxLinks = 256;  // of verbs
constexpr double kMaxSettle = 60;
constexpr double kMaxRate = 1e7;

nlohmann::json ToJson(const Spec& spec);
// Throws Error.
Spec SpecFromJson(const nlohmann::json& json);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_SPEC_H_
