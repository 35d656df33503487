#ifndef RCSOCK_LIB_POSIX_SOCKET_REGISTRATIONS_H_
#define RCSOCK_LIB_POSIX_SOCKET_REGISTRATIONS_H_

#include <cstdint>

#include "lib/posix/socket/interest_latch.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

// What a stream tells its registrations in epoll sets, and asks of them.  The
// room of the sets gives its own object to Set before the first set is there.
// So streams need nothing of that room.  Until then no stream has a
// registration.
//
// Any thread may call these.  Each takes the interest latch.
class Registrations {
 public:
  // The stream moves to its lane: its registrations move to user space.  May
  // take the stream off the lane again.  Returns false if they move later: then
  // the conductor calls Sock::Moved.
  virtual bool ToUser(Sock* sock);
  // The kernel has the stream: its registrations move to the kernel.
  virtual void ToKernel(Sock* sock);
  // The stream's lane has changed.  With `barrier` no wait uses the old lane on
  // return; the caller then holds no latch.
  virtual void Refresh(Sock* sock, bool barrier);
  // Of what an edge tells, and whom.
  enum class Edge : std::uint8_t {
    kAny,
    kRoom,       // of room alone; not who asks for input alone with EPOLLET
    kRoomAsked,  // of room alone; none but those that ask for it
  };
  // Readiness may have changed: makes an edge for each registration.
  static void Ready(Sock* sock, Edge edge = Edge::kAny) {
    // No latch is needed here.  The caller stored what is to be reported with
    // one of the stream's latches held.  A registration first puts itself into
    // the list, then looks with that latch.  So one of the two sees the other.
    if (sock->interests != nullptr) Get().MakeEdges(sock, edge);
  }
  virtual void MakeEdges(Sock* sock, Edge edge);
  // Threads that sleep in the stream's sets, on either side, look again.
  virtual void Kick(Sock* sock);
  // The peer of a stream with registrations is known now.
  virtual void PeerKnown(Sock* sock);
  // A number of the stream is closed; `fd` -1 is the last, and drops all
  // registrations.  `kept`: a number of the stream that is about to be closed
  // while the open file lives on, else -1.
  virtual void Drop(Sock* sock, int fd, int kept);
  // Returns whether there is a registration by this number.
  virtual bool Named(Sock* sock, int fd);
  // Returns whether a registration is in a set that stays open across exec.
  // The new program would not know of it.
  virtual bool Kept(Sock* sock);
  // Returns the bell of a set that watches the stream, made if need be, or
  // `otherwise` if no set does.
  virtual int Bell(Sock* sock, int otherwise);
  // Tells the lane which notify bits and bell the registrations ask for.
  // Returns whether something may have come since that has rung no bell, so
  // that the caller has to look, and to tell.
  virtual bool NotifyLatched(Sock* sock)
      RC_REQUIRES(sock->tx_latch, sock->rx_latch);
  // Returns whether the registrations may stay in user space while a child of
  // fork has the stream and its sets, and does not use them.  `forking`: the
  // caller has the latches of a fork.
  virtual bool MayHide(Sock* sock, bool forking);
  // Called in that child: hides the stream's sets.
  virtual void HideSets(Sock* sock);

  // Returns whether the registrations of the stream are in user space.
  static bool InUser(const Sock* sock);

  static Registrations& Get();
  static void Set(Registrations* registrations);

 protected:
  ~Registrations() = default;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_REGISTRATIONS_H_
