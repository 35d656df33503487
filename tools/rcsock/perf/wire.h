#ifndef RCSOCK_TOOLS_RCSOCK_PERF_WIRE_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_WIRE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/rcsock/perf/net.h"

namespace rcsock::perf {

// The control connection between the client and the server.  Each end first
// sends a hello of 16 bytes: "RCSKPERF", the version and a zero.  Both numbers
// have 32 bits, the highest byte first.  Then messages follow, both ways: the
// length in 32 bits, at most kMaxMessage, and that much JSON.  The JSON is an
// object with a "type".
//
//   client -> server  test    the spec and a token: get ready
//   server -> client  ready   the port of the data connections, and the host
//   client -> server  finish  the client has measured
//   server -> client  result  what the server has measured
//   either            error   in words; nothing comes after it
//
// A connection carries any number of tests in turn.  Each end takes what comes
// for hostile until it has checked it.
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kMaxMessage = 1 << 20;
constexpr std::uint16_t kDefaultPort = 18592;

class Wire {
 public:
  // `peer` is the name of the other end in messages.
  Wire(Fd fd, std::string peer);

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  void SendHello();
  void Send(const nlohmann::json& message);
  // Sends if it can: the peer may be gone.
  void SendError(const std::string& line);

  // Reads what has come, without waiting.  Returns false once the peer has
  // closed.
  bool Fill();
  // Returns true once the hello has come.  Throws if it is no hello, or of
  // another version.
  bool TakeHello();
  // Returns the next whole message.  Throws if it is no message.
  std::optional<nlohmann::json> Take();

 private:
  Fd fd_;
  const std::string peer_;
  std::string buffer_;
};

// Returns the "type" of a message.
std::string TypeOf(const nlohmann::json& message);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_WIRE_H_
