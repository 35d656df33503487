#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_TAKEN_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_TAKEN_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock_place.h"

namespace rcsock::lane::rdma {
class QpLane;
}

namespace rcsock::posix {

// A stream that one call keeps: another thread may close the number meanwhile,
// and the object is not to become another connection.
class Placement::Kept {
 public:
  Kept(Sock* sock, int fd);
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 protected:
  ~Kept();
  // Returns false if the stream has ended.
  bool Keep();
  bool kept() const { return kept_; }
  // False in a child that a handler has forked meanwhile.
  bool InOwner() const;

  Sock* const sock_;
  const int fd_;

 private:
  const long process_;
  bool kept_ = false;
};

// Bytes that one call takes from a stream on TCP before they are where the
// program wants them. Those that cannot get there go back, to the front of the
// stream.
//
// The object belongs to its thread, and no other thread receives from the
// stream meanwhile.
class Placement::Taken : Kept {
 public:
  using Kept::Kept;
  ~Taken();

  // Keeps the stream on TCP until the object ends. Returns false if it is not
  // on TCP alone, or if calls wait for more than a byte (SO_RCVLOWAT), or if
  // another process holds the connection: that process would not see what goes
  // back.
  bool Begin();
  // Returns as recv with MSG_DONTWAIT.  Less than asked: no more is there.
  ssize_t Take(std::byte* to, std::size_t length);
  static constexpr std::size_t piece() { return ~std::size_t{0}; }
  // The next `bytes` that were taken are where the program wants them.  Returns
  // `bytes`.
  std::size_t Deliver(std::size_t bytes);
  // Puts bytes before all that the stream has unread: those that were taken and
  // not delivered. Returns false if there is no memory. Then they are lost.
  bool GiveBack(const iovec* pieces, int count);

 private:
  std::uint32_t entered_ = 0;  // PlainCalls::Enter, if kept()
};

// As Taken, for a stream on an RDMA lane.  The bytes stay in the stream until
// they are delivered, so none has to go back.
class Placement::Seen : Kept {
 public:
  using Kept::Kept;

  // Returns false if the stream does not read from an RDMA lane alone.
  bool Begin();
  // Copies the bytes behind those that it has copied before.  Returns as recv
  // with MSG_DONTWAIT.  Less than piece(), or than asked: no more is there.
  ssize_t Take(std::byte* to, std::size_t length);
  // A part of the ring: what the peer may send anew once a copy has ended.
  std::size_t piece() const { return piece_; }
  // Takes the next `bytes` from the stream, and returns how many: fewer if the
  // stream has left the lane.  Then the others are still to come.
  std::size_t Deliver(std::size_t bytes);
  static bool GiveBack(const iovec*, int) { return true; }

 private:
  // Returns null if what has been seen is not what comes next.  Requires the
  // rx_latch.
  lane::rdma::QpLane* Lane() const;

  std::uint32_t lane_ = 0;  // its serial number
  std::uint64_t next_ = 0;  // where the stream's next byte is
  std::size_t ahead_ = 0;   // bytes that have been copied from there on
  std::size_t piece_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_TAKEN_H_
