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
// True and *transport, or false if it is none.
bool FromName(const std::string& name, Transport* transport);

// True if the measuring processes run under the preload.
bool UnderRcsock(Transport transport);

// One run, as both ends are told.
struct Spec {
  Mode mode = Mode::kStream;
  Transport transport = Transport::kAuto;
  Direction direction = Direction::kForward;  // kStream
  double seconds = 10;
  std::uint64_t bytes = 0;  // kStream: so many instead of `seconds`; 0: none
  std::uint64_t size = 128 << 10;  // of a message
  std::uint64_t connections = 1;   // kShort: threads that make them
  std::uint64_t active = 1;        // kMessages: round trips under way
  double settle = 3;    // at most so long until the lane is there, seconds
  bool traced = false;  // count system calls
  // The CPU that the measuring process of each end is bound to; -1: any.
  int client_cpu = -1;
  int server_cpu = -1;

  // One thread for each connection, or one epoll loop for all.
  bool Threads() const;
  // Bytes that one connection sends in one direction; 0: until the time is up.
  std::uint64_t BytesEach() const;
  // Why the transport can't do it; "": it can.
  std::string WhyNot() const;
};

// Each option's bounds: for the command line, and for what a client asks.
constexpr double kMinSeconds = 0.05;
constexpr double kMaxSeconds = 86400;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 50;
constexpr std::uint64_t kMaxSize = 16 << 20;
constexpr std::uint64_t kMaxParallel = 256;
constexpr std::uint64_t kMaxConnections = 100000;
constexpr std::uint64_t kMaxActive = 4096;
constexpr int kMaxCpu = 8191;
constexpr std::uint64_t kMaxLinks = 256;  // of verbs
constexpr double kMaxSettle = 60;

nlohmann::json ToJson(const Spec& spec);
// Throws Error.
Spec SpecFromJson(const nlohmann::json& json);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_SPEC_H_
