#ifndef RCSOCK_LIB_POSIX_SOCKET_SNAPSHOT_H_
#define RCSOCK_LIB_POSIX_SOCKET_SNAPSHOT_H_

#include <cstdint>

// What a process answers to `rcsock stat`: one SnapshotHead and then its
// streams, in a sealed memfd.  Another version of rcsock may read it, and a
// hostile process may have written it.  Sizes are in the head.  The reader
// checks the sizes, and every value that selects something.
namespace rcsock::posix {

constexpr std::uint32_t kSnapshotMagic = 0x74736372;  // "rcst"
// A new field goes to the end.  A change of meaning needs a new version.
constexpr std::uint16_t kSnapshotVersion = 1;

enum class SnapshotLane : std::uint8_t { kTcp, kShm, kRdma };
enum class SnapshotState : std::uint8_t {
  kTcp,        // no search is under way
  kSeeking,    // looking for its peer
  kSwitching,  // between TCP and its lane
  kOnLane,
};

struct SnapshotCounts {
  std::uint64_t streams;
  std::uint64_t tx_bytes;
  std::uint64_t rx_bytes;
};

// Totals since the process began, streams that have ended included.
struct SnapshotHead {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t head_size;
  std::uint32_t stream_size;
  std::uint32_t count;  // of streams that follow
  std::uint64_t monotonic_ns;
  std::uint64_t streams;
  std::uint64_t promoted;
  std::uint64_t demotions;
  std::uint64_t failovers;
  SnapshotCounts lanes[3];    // by SnapshotLane
  std::uint64_t reasons[64];  // by base::Reason
  // Streams that were asked to leave an RDMA lane: for hotter streams, for
  // streams that want larger rings, and for being idle with large rings.
  std::uint64_t evicted_budget;
  std::uint64_t evicted_memory;
  std::uint64_t evicted_idle;
  std::uint64_t pinned_bytes;  // registered with devices; the most so far
  std::uint64_t pinned_peak;
  // The process's budgets: base::Config.
  std::uint64_t max_qps;
  std::uint64_t max_pinned;
  std::uint64_t max_ring;
  // Bytes that were read ahead, and that a program without rcsock cannot be
  // told of.
  std::uint64_t lost_bytes;
  // Bytes that a device has put into the memory of the call that received them.
  std::uint64_t in_place_bytes;
  // What threads have spun behind the looks of the first microsecond, and how
  // much of that found something.
  std::uint64_t spun_ns;
  std::uint64_t spun_well_ns;
  // Bytes of GPUs, by their way (gpu::Counts).
  std::uint64_t gpu_slot_bytes;
  std::uint64_t gpu_ring_bytes;
  std::uint64_t gpu_device_bytes;
  std::uint64_t gpu_passed_bytes;
};

struct SnapshotStream {
  std::uint8_t local[16];  // IPv6; IPv4 as a mapped address
  std::uint8_t peer[16];
  std::uint16_t local_port;
  std::uint16_t peer_port;
  std::int32_t fd;
  std::uint64_t inode;  // the socket's
  SnapshotLane lane;    // the lane that the stream is on
  SnapshotState state;
  std::uint8_t reason;    // base::Reason: why it is on TCP, or left its lane
  std::uint8_t acceptor;  // 1: the end that accepted
  std::uint32_t promotions;
  std::uint32_t demotions;
  std::uint32_t failovers;
  // Since the connection began, in this process.  Bytes over a lane count
  // apart.
  std::uint64_t tcp_tx_bytes;
  std::uint64_t tcp_rx_bytes;
  std::uint64_t lane_tx_bytes;
  std::uint64_t lane_rx_bytes;
  // Set while the stream has a lane: the sizes of the rings, and the bytes in
  // them that are not consumed yet.  The credit is how many messages the sender
  // may still send.
  std::uint64_t tx_ring;
  std::uint64_t rx_ring;
  std::uint64_t tx_fill;
  std::uint64_t rx_fill;
  std::uint32_t credit_left;
  std::uint32_t credit_most;
  char device[32];         // of an rdma lane
  SnapshotLane lane_kind;  // of the lane that lane_*_bytes went over
  std::uint8_t zero[7];
};
static_assert(sizeof(SnapshotHead) % 8 == 0 && sizeof(SnapshotStream) % 8 == 0);

// Returns a descriptor of this process's present state, which is the caller's,
// or -1 with errno.  Runs on the conductor's thread, and takes the latches of
// one stream after the other.
int TakeSnapshot();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SNAPSHOT_H_
