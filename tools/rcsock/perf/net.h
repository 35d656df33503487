#ifndef RCSOCK_TOOLS_RCSOCK_PERF_NET_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_NET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Plain sockets, as any program uses them: this file knows no lanes.  Whatever
// fails throws Error.

namespace rcsock::perf {

// A descriptor, closed by close(2) of libc, so that a preload sees it.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { Close(); }

  void Close();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  std::uint16_t port() const;
  void SetPort(std::uint16_t port);
  // Returns the numeric address alone.  An IPv4 address that is mapped into
  // IPv6 is shown as IPv4.
  std::string Host() const;
};

// Returns the addresses of `host`, at least one, the best first.  An empty
// `host` means every address of this host.
std::vector<Address> ResolveAll(const std::string& host, std::uint16_t port);
Address Resolve(const std::string& host, std::uint16_t port);  // the first
// Returns the local end, or the other end, of a socket.
Address LocalAddress(int fd);
Address PeerAddress(int fd);

Fd Listen(const std::string& host, std::uint16_t port);
// Waits `seconds` at most for the handshake.  On failure the result is empty,
// and errno says why.
Fd TryConnect(const Address& address, double seconds);

void SetNoDelay(int fd);
void SetNonBlocking(int fd);
// Sets how long a blocking send, receive or connect may take.  0: for ever.
void SetTimeout(int fd, double seconds);

// SendAll and ReceiveAll are for blocking sockets.
void SendAll(int fd, const void* data, std::size_t size);
// Returns false if the stream ends before the first byte.  Throws if it ends
// later.
bool ReceiveAll(int fd, void* data, std::size_t size);

// Returns the bytes that the kernel's TCP has carried, both ways.
std::uint64_t TcpBytes(int fd);

// Throws if this process cannot have `count` more descriptors.
void NeedDescriptors(std::uint64_t count);

std::int64_t NowNs();

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_NET_H_
