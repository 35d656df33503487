#include "tools/rcsock/perf/wire.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/fields.h"

namespace rcsock::perf {
namespace {

constexpr char kMagic[] = "RCSKPERF";
constexpr std::size_t kMagicSize = sizeof kMagic - 1;
constexpr std::size_t kHelloSize = kMagicSize + 8;
constexpr double kSendSeconds = 10;

std::string Big32(std::uint32_t value) {
  const std::uint32_t big = htonl(value);
  return {reinterpret_cast<const char*>(&big), sizeof big};
}

std::uint32_t Big32(const char* bytes) {
  std::uint32_t big;
  std::memcpy(&big, bytes, sizeof big);
  return ntohl(big);
}

}  // namespace

Wire::Wire(Fd fd, std::string peer)
    : fd_(std::move(fd)), peer_(std::move(peer)) {
  SetNoDelay(fd_.get());
  SetTimeout(fd_.get(), kSendSeconds);
  // A host that vanishes is noticed within some 20 seconds.
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(fd_.get(), level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);
}

void Wire::SendHello() {
  const std::string hello = kMagic + Big32(kVersion) + Big32(std::uint32_t{0});
  SendAll(fd_.get(), hello.data(), hello.size());
}

void Wire::Send(const nlohmann::json& message) {
  const std::string text =
      message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxMessage) Fail("a message of {} bytes", text.size());
  const std::string frame =
      Big32(static_cast<std::uint32_t>(text.size())) + text;
  SendAll(fd_.get(), frame.data(), frame.size());
}

void Wire::SendError(const std::string& line) {
  try {
    Send({{"type", "error"}, {"message", line.substr(0, 400)}});
  } catch (const Error&) {
  }
}

bool Wire::Fill() {
  char bytes[65536];
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) {
      buffer_.append(bytes, static_cast<std::size_t>(n));
      // Take() empties the buffer.  A peer that sends more than one message at
      // a time is not rcsock's.
      if (buffer_.size() > 2 * kMaxMessage) Fail("{} sends too much", peer_);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

bool Wire::TakeHello() {
  const std::size_t known = std::min(buffer_.size(), kMagicSize);
  if (buffer_.compare(0, known, kMagic, known) != 0) {
    Fail("{} does not speak rcsock perf's protocol", peer_);
  }
  if (buffer_.size() < kHelloSize) return false;
  const std::uint32_t version = Big32(buffer_.data() + kMagicSize);
  if (version != kVersion) {
    Fail(
        "{} speaks version {} of rcsock perf's protocol, this is version {}: "
        "use the same rcsock at both ends",
        peer_, version, kVersion);
  }
  buffer_.erase(0, kHelloSize);
  return true;
}

std::optional<nlohmann::json> Wire::Take() {
  if (buffer_.size() < 4) return std::nullopt;
  const std::size_t size = Big32(buffer_.data());
  if (size < 2 || size > kMaxMessage) {
    Fail("{} sent a message that makes no sense (its length)", peer_);
  }
  if (buffer_.size() < 4 + size) return std::nullopt;
  nlohmann::json message = nlohmann::json::parse(
      buffer_.begin() + 4, buffer_.begin() + 4 + static_cast<long>(size),
      nullptr, false);
  buffer_.erase(0, 4 + size);
  if (!message.is_object()) {
    Fail("{} sent a message that makes no sense (no JSON)", peer_);
  }
  return message;
}

std::string TypeOf(const nlohmann::json& message) {
  return TextField(message, "type", 16);
}

}  // namespace rcsock::perf
