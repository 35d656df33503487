#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_CLOSED_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_CLOSED_H_

#include <cstdint>

namespace rcsock::posix {

class Sock;

// The streams that the application has closed, and that rcsock has not finished
// yet: the conductor still delivers what their senders were promised.
//
// Any thread may call it.  Each stream has one Place in the list.
class ClosedStreams {
 public:
  // A part of a Sock, which this class alone touches.
  class Place {
   private:
    friend class ClosedStreams;
    Sock** link = nullptr;  // null: not in the list
    Sock* next = nullptr;
  };

  static void Add(Sock* sock);
  // Does nothing if the stream is not in the list.
  static void Remove(Sock* sock);
  // Counts, while it lives, a stream that is taken from the list, and whose
  // number is still to be closed.
  class Unlisting {
   public:
    Unlisting();
    ~Unlisting();
    Unlisting(const Unlisting&) = delete;
    Unlisting& operator=(const Unlisting&) = delete;
  };

  // Returns whether a closed stream may still have this local port (network
  // order), although its peer has ended.  The stream frees the port when the
  // peer answers.
  static bool EndsOnPort(std::uint16_t port);
  // Begins the time in which flushing streams wait for their peers to end
  // first, at an exit or exec.
  static void BeginToEnd();
  // Returns whether that time, and the deadline, are still to come.
  static bool MayAwaitEnds(std::uint64_t deadline_ns);
  // As AcrossExec::Flush, for all streams of the list.
  static void Flush(std::uint64_t deadline_ns, bool last);
  // As AcrossExec::TakeResetBack, for all streams of the list.
  static void TakeResetsBack();

  // Take and release the list's latch around fork.  The child has no such
  // streams: the parent delivers them.
  static void ForkLock();
  static void ForkUnlock(bool child);

 private:
  static void Link(Sock* sock, Sock** head);
  static void Unlink(Sock* sock);
  // Calls `each` for each stream of the list.  No latch is held meanwhile.
  template <class Each>
  static void ForEach(Each&& each);
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_CLOSED_H_
