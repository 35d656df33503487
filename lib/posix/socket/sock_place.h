#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_PLACE_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_PLACE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace rcsock::gpu {
class Memory;
class Pipe;
}  // namespace rcsock::gpu
namespace rcsock::lane {
class Lane;
}
namespace rcsock::lane::rdma {
class QpLane;
}

namespace rcsock::posix {

class Sock;

// Direct placement: the device of one end writes to memory of the other end,
// while both are on an RDMA lane.  The lane knows how.  Placement checks,
// before and after, that the stream is still on that lane.
//
// A view of its Sock, without a state.  Any thread may call it, and holds no
// latch of the stream, unless a method says otherwise.  `epoch` names a lane.
// ESTALE: the stream is not on that lane.
class Placement {
 public:
  explicit Placement(Sock* sock) : sock_(sock) {}

  // Lets the peer write to memory.  Stores the lane's epoch, and the key of the
  // memory.  Returns 0, or an errno.
  int Expose(void* at, std::size_t length, std::uint32_t* epoch,
             std::uint32_t* key);
  // Takes Expose back.
  void Hide(std::uint32_t epoch, std::uint32_t key);
  // Writes to the peer's memory.  Returns a ticket, or -errno.
  std::int64_t Place(std::uint32_t epoch, const void* from, std::size_t length,
                     std::uint64_t to, std::uint32_t key);
  // Returns 1 if the ticket's write is done, 0 if not, or -errno.
  int Placed(std::uint32_t epoch, std::int64_t ticket);
  // Sends what an RDMA lane takes now, straight from memory that its SendFrom
  // names.  Returns the bytes, 0 if there is no room, -1 if there is no such
  // lane or the lane cannot.
  ssize_t SendDirect(int fd, const void* from, std::size_t length);
  // What a device copies for one call.
  struct DeviceCopy {
    int fd;
    gpu::Memory* memory;
    gpu::Pipe* pipe;
    bool patient;  // looks a while for room, or for more, or has bytes passed
    // Set by the copy.  The error of the device is behind the bytes.
    int error = 0;
    std::size_t passed = 0;  // from one device's memory to the other's
  };
  // The most bytes of one FillRing or DrainRing that are passed from device to
  // device.
  static constexpr std::size_t kMostPassed = std::size_t{1024} * 1024 * 1024;
  // A device copies straight into the ring of a lane in shared memory, or out
  // of the ring, or between the devices of both ends.  FillRing and DrainRing
  // move what they can without a sleep.  Both return the bytes, or -1 if the
  // stream is not on such a lane, or the driver does not take its ring.  No
  // handler runs meanwhile.
  ssize_t FillRing(const std::byte* from, std::size_t length, DeviceCopy* copy);
  ssize_t DrainRing(std::byte* to, std::size_t length, DeviceCopy* copy);
  // What a call has ahead of its copies, from TCP and from an RDMA lane:
  // sock_taken.h.
  class Taken;
  class Seen;
  // Returns the RDMA lane that the stream reads from, or null.  Requires the
  // rx_latch, as LaneOfSerial does.
  lane::rdma::QpLane* ReceivingLane();
  // Returns the lane with that serial number, also if the stream has left the
  // lane.  Returns null if its queue pair has gone, or is about to.
  lane::rdma::QpLane* LaneOfSerial(std::uint32_t serial);

 private:
  // Returns the working RDMA lane `epoch`, or any such lane for 0.  Returns
  // null if the stream is not on it.  Requires either latch.
  lane::Lane* LaneOf(std::uint32_t epoch) const;

  class Kept;
  class RingCopies;
  class Fill;
  class Drain;
  Sock* const sock_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_PLACE_H_
