#ifndef RCSOCK_LIB_BASE_CONFIG_H_
#define RCSOCK_LIB_BASE_CONFIG_H_

#include <cstdint>

#include "lib/base/path.h"
#include "lib/base/policy.h"

namespace rcsock::base {

// The smallest bound for a ring: the ring of an idle rdma lane.
constexpr std::uint64_t kLeastMaxRing = 16 * 1024;

// The shortest cluster key.
constexpr std::uint32_t kLeastKey = 32;

// All variables that LoadConfig reads.
constexpr const char* kVariables[] = {
    "RCSOCK_ACK_RETRIES", "RCSOCK_ACK_TIMEOUT_MS",
    "RCSOCK_DEVICES",     "RCSOCK_GPU_PASS",
    "RCSOCK_IO_URING",    "RCSOCK_KEY_FILE",
    "RCSOCK_LANES",       "RCSOCK_LOG",
    "RCSOCK_LOG_FILE",    "RCSOCK_MAX_PINNED",
    "RCSOCK_MAX_QPS",     "RCSOCK_MAX_RING",
    "RCSOCK_MAX_SHARED",  "RCSOCK_MEET_DIR",
    "RCSOCK_PEERS",       "RCSOCK_PROFILE",
    "RCSOCK_PROMOTE_OPS", "RCSOCK_PROMOTE_BYTES",
    "RCSOCK_RDMA_PORT",   "RCSOCK_RECV_IN_PLACE",
    "RCSOCK_RULES",       "RCSOCK_SPIN_US",
    "RCSOCK_STATS",       "RCSOCK_TRAFFIC_CLASS",
};

// Where a waiting receive lets the peer's device write to its memory.
enum class InPlace : std::uint8_t {
  kOff,
  kAuto,    // on hardware, where it is worth it, to registered memory
  kAny,     // ... to any memory
  kAlways,  // on any device that can, from the least length on
};

// What the environment asks for. Read once, before the first interposed call.
struct Config {
  bool enabled = true;  // RCSOCK_LANES=tcp switches every lane off
  bool shm = true;      // RCSOCK_LANES=auto, or a list with shm
  bool rdma = true;     // RCSOCK_LANES=auto, or a list with rdma
  // RCSOCK_RDMA_PORT: the RDMA port of a host where no port of the application
  // must be bound (iWARP), or can be bound (below 1024).
  std::uint16_t rdma_port = 18591;
  // RCSOCK_KEY_FILE: the file's bytes; 0 bytes: no cluster key.
  std::uint8_t key[4096] = {};
  std::uint32_t key_size = 0;
  // RCSOCK_MAX_QPS: the most streams of this process on rdma lanes. A card's
  // cache holds a few hundred queue pairs; past that every queue pair is
  // slower.
  std::uint32_t max_qps = 512;
  // RCSOCK_MAX_PINNED: bytes that the rings of rdma lanes may take together; 0:
  // what RLIMIT_MEMLOCK allows.
  std::uint64_t max_pinned = 0;
  // RCSOCK_MAX_SHARED: above this many bytes of rings in shared memory no
  // stream gets new ones; 0: a quarter of the memory that the process may have.
  std::uint64_t max_shared = 0;
  // RCSOCK_MAX_RING: bytes that a ring of a lane may have, rounded down to a
  // power of two; 0: what each lane finds right. The smaller of both ends'
  // counts.
  std::uint64_t max_ring = 0;
  // RCSOCK_IO_URING=lane: rcsock carries out the requests of io_uring on
  // streams. By default streams with such requests go to TCP.
  bool carry_rings = false;
  // RCSOCK_GPU_PASS=on: processes of one user pass memory of a GPU itself.
  bool gpu_pass = false;
  // RCSOCK_RECV_IN_PLACE: off, auto, any or always.
  InPlace in_place = InPlace::kAuto;
  // RCSOCK_PEERS: other users with whose processes shared memory may be used
  // (uids, with commas between).
  static constexpr int kMostPeers = 16;
  std::uint32_t peers[kMostPeers] = {};
  int peer_count = 0;
  // RCSOCK_MEET_DIR: the directory in which this process meets processes of
  // other network namespaces; empty: it meets none.
  char meet_dir[kLongestPath + 1] = {};
  // RCSOCK_STATS=FILE, where %p is the pid; empty: no file.
  char stats[kLongestPath + 1] = {};
  // RCSOCK_SPIN_US: the longest spin before a sleep.
  static constexpr std::uint32_t kSpinUs = 100;
  std::uint32_t spin_us = kSpinUs;
  // A thread spins as long as its SpinAccount allows: RCSOCK_PROFILE=balanced,
  // without RCSOCK_SPIN_US.
  bool spin_earned = true;
  std::uint32_t promote_ops = 8;  // RCSOCK_PROMOTE_OPS: calls that moved bytes
  std::uint64_t promote_bytes = 65536;  // RCSOCK_PROMOTE_BYTES
  // Set for the RDMA lanes of all streams, whatever the rules say:
  // RCSOCK_ACK_TIMEOUT_MS, RCSOCK_ACK_RETRIES, RCSOCK_TRAFFIC_CLASS, and the
  // place of RCSOCK_DEVICES in the rules' lists. 0 stands for a value that is
  // not given, and -1 for a traffic class that is not given. FabricFor has the
  // result.
  std::uint16_t ack_ms = 0;
  std::uint8_t retries = 0;
  std::int16_t traffic_class = -1;
  std::uint16_t devices = 0;
  // The fields above, as terms: they hold where no rule says otherwise.
  Terms terms;
  // The environment sets it, so no rule does.
  bool lanes_given = false;
  bool promote_given = false;
  // RCSOCK_KEY_FILE can't be read, or RCSOCK_DEVICES is malformed.
  bool no_rdma = false;
  Rules rules;  // RCSOCK_RULES
};

const Config& GetConfig();
// Reads the environment again (start-up, and tests).
void LoadConfig();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CONFIG_H_
