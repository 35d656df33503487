#ifndef RCSOCK_LIB_BASE_POLICY_H_
#define RCSOCK_LIB_BASE_POLICY_H_

#include <cstdint>

// Which streams may have which lanes, and when. `rcsock run` makes the rules
// from a configuration file and hands them on in RCSOCK_RULES. `;` separates
// rules, and `,` separates the `key=value` pairs of a rule.
//
//   prog=GLOB         only programs of that name (of the file, or comm)
//   dir=in|out        only accepted, or connecting, streams
//   addr=HEX/BITS     only peers with that prefix; IPv6 form, 32 digits
//   port=FIRST-LAST   only that port of the service: the peer's of a connecting
//                     stream, the own one of an accepted
//   lanes=LANE+LANE   of shm, rdma; or tcp for none
//   promote=eager|adaptive|never
//   ack=MS retries=N tclass=N
//                     of an RDMA lane: see Fabric
//   devices=DEVICE+DEVICE
//                     the RDMA devices of lanes: NAME, NAME:PORT, or with `-`
//                     before it one that is left alone; NAME is a glob
//   profile=latency|balanced|efficient
//   spin=N qps=N pinned=BYTES ring=BYTES
//                     of the process: never beside dir, addr, port
//
// For each setting, the first rule that fits and names it decides.
namespace rcsock::base {

struct Config;

// How much CPU time a process gives for short waits.
enum class Profile : std::uint8_t {
  kBalanced,   // what its messages save: SpinAccount
  kLatency,    // RCSOCK_SPIN_US in each wait
  kEfficient,  // none
};
// Reads the lanes of RCSOCK_LANES: auto, tcp, or shm and rdma with commas
// between. Returns false if `text` is none of these; both lanes are unset then.
bool ParseLanes(const char* text, bool* shm, bool* rdma);

// Returns false if `word` is none.
bool ParseProfile(const char* word, Profile* profile);

// The terms of one stream.
struct Terms {
  bool shm = true;
  bool rdma = true;
  std::uint32_t promote_ops = 0;
  std::uint64_t promote_bytes = 0;
};

// How the device of a stream's RDMA lane treats the network.
struct Fabric {
  // How long a queue pair waits for an acknowledgement before it sends again,
  // and how often it sends again before the lane is dead. Together about one
  // second: a dead device or path gives the stream back to TCP before a person
  // notices, and long before TCP gives up. One lost packet costs 134 ms; seven
  // in a row end the lane, and the stream looks for another. A network that
  // loses packets, or whose links come back after seconds, needs one second
  // instead. There each false end of a lane costs more than a late end.
  std::uint16_t ack_ms = 134;
  std::uint8_t retries = 6;
  // The traffic class of the lane's packets; -1: that of the stream's socket.
  std::int16_t traffic_class = -1;
  // A list for MayUseDevice.
  const char* devices = "";
};
constexpr std::uint64_t kMostAckMs = 8000;
constexpr std::uint64_t kMostRetries = 7;
constexpr std::uint64_t kMostTrafficClass = 255;
// All different lists of devices of a program's rules take this many bytes at
// most, each with one more byte.
constexpr int kDeviceBytes = 512;

struct Rule {
  enum : std::uint8_t { kIn = 1, kOut = 2 };
  std::uint8_t directions = kIn | kOut;
  std::uint8_t prefix[16] = {};
  std::uint8_t prefix_bits = 0;
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 65535;
  bool sets_lanes = false;
  bool shm = false;
  bool rdma = false;
  enum class Promote : std::uint8_t { kUnset, kEager, kAdaptive, kNever };
  Promote promote = Promote::kUnset;
  std::uint16_t ack_ms = 0;         // 0: not set
  std::uint8_t retries = 0;         // 0: not set
  std::int16_t traffic_class = -1;  // -1: not set
  std::uint16_t devices = 0;        // where in Rules::devices; 0: nowhere
};
constexpr int kMaxRules = 64;
struct Rules {
  Rule rules[kMaxRules];
  int count = 0;
  // Lists of devices, each with a zero behind it, from the second byte on.
  char devices[kDeviceBytes] = {};
  std::uint16_t devices_end = 1;
  // Settings of the process that a rule has made.
  bool sets_profile = false;
  bool sets_spin = false;
  bool sets_qps = false;
  bool sets_pinned = false;
  bool sets_shared = false;
  bool sets_ring = false;
  Profile profile = Profile::kBalanced;
  std::uint32_t spin_us = 0;
  std::uint32_t max_qps = 0;
  std::uint64_t max_pinned = 0;
  std::uint64_t max_shared = 0;
  std::uint64_t max_ring = 0;
};

// Reads the rules for a program of these names. Returns false if `text` is
// malformed.
bool ParseRules(const char* text, const char* program, const char* comm,
                Rules* rules);

// Keeps a list of devices with the rules, and returns where. 0: it is no list,
// or there is no room.
std::uint16_t AddDevices(const char* begin, const char* end, Rules* rules);
// Returns true if `entry` can stand in a list of devices.
bool IsDevice(const char* entry);
// Returns true if a list allows a device's port. An entry with `-` forbids what
// it names. If there are other entries, one has to name the port. An empty list
// allows every device.
bool MayUseDevice(const char* devices, const char* name, unsigned port);

// Returns the terms of a stream. `peer`: 16 bytes, IPv6 form; `port`: the
// service's.
Terms TermsFor(const Config& config, const std::uint8_t* peer,
               std::uint16_t port, bool accepted);
// Returns the fabric for an RDMA lane of that stream. Its list of devices lives
// as long as `config`.
Fabric FabricFor(const Config& config, const std::uint8_t* peer,
                 std::uint16_t port, bool accepted);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_POLICY_H_
