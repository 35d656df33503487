#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_PEER_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_PEER_H_

#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "lib/base/policy.h"
#include "lib/stream/stream.h"

namespace rcsock::posix {

class Sock;

// The peer of a stream: its role and address, and what the rules and the past
// say of that peer.
//
// A part of its Sock.  The hooks set it while the stream is being connected.
// Any thread may ask, with or without a latch of the stream.  A child of fork
// keeps all of it.
class PeerFacts {
 public:
  explicit PeerFacts(Sock* sock) : sock_(sock) {}

  stream::Role role() const { return role_; }
  bool accepted() const { return role_ == stream::Role::kAcceptor; }
  void SetRole(stream::Role role) { role_ = role; }
  // Returns whether the stream has been connected.
  bool connected() const { return connected_.load(std::memory_order_relaxed); }
  void SetConnected() { connected_.store(true, std::memory_order_relaxed); }
  // Returns whether the peer's address is one of this host's.
  bool local() const { return local_.load(std::memory_order_relaxed); }
  // Returns what the rules allow with this peer.
  const base::Terms& terms() const { return terms_; }
  // Returns the peer's service as Prospect numbers services, or 0.
  std::uint16_t service() const {
    return service_.load(std::memory_order_relaxed);
  }

  // Learns the peer's address, and applies the rules for that peer.  `fd` is
  // the stream's number.  Requires that the role is set.
  void Set(int fd, const sockaddr* address, socklen_t length);
  // Notes that the socket listens, at the address of `fd`.
  void SetListening(int fd);
  // Learns the service of a socket that listens at the address of `fd`, or has
  // been accepted there.
  void LearnService(int fd);
  // Takes over the service of the listener.
  void Inherit(const PeerFacts& listener) {
    service_.store(listener.service(), std::memory_order_relaxed);
  }

  // Returns whether no lane in shared memory may come over this host's own
  // addresses.
  bool SeeksRemote() const { return !(terms_.shm && local()); }
  // Returns whether the peer may be found in the meeting directory: it may be
  // of another network namespace of this host.
  bool MayMeetFar() const;
  // Returns whether the stream's lane would be an RDMA lane, and no other.
  bool SeeksRdma() const;

  // Forgets all, for another connection.  The role stays.
  void Reset();

  // Take and release, around fork, the latch of what is known of this host.
  static void ForkLock();
  static void ForkUnlock(bool child);

 private:
  void ApplyRules(int fd, const sockaddr* address);

  Sock* const sock_;
  std::atomic<std::uint16_t> service_{0};
  std::atomic<bool> local_{false};
  std::atomic<bool> connected_{false};
  stream::Role role_ = stream::Role::kConnector;
  base::Terms terms_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_PEER_H_
