#ifndef RCSOCK_LIB_BASE_POLICY_H_
#define RCSOCK_LIB_BASE_POLICY_H_

#include <cstdint>

// Which streams may have which lanes, and when.  `rcsock run` makes it of a
// configuration file and hands it on in RCSOCK_RULES: rules with `;` between
// them, of `key=value` with `,` between them.
//
//   prog=GLOB         only programs of that name (of the file, or comm)
//   dir=in|out        only accepted, or connecting, streams
//   addr=HEX/BITS     only peers with that prefix; IPv6 form, 32 digits
//   port=FIRST-LAST   only that port of the service: the peer's of a connecting
//                     stream, the own one of an accepted
//   lanes=LANE+LANE   of shm, rdma; or tcp for none
//   promote=eager|adaptive|never
//   spin=N qps=N pinned=BYTES ring=BYTES
//                     of the process: never beside dir, addr, port
//
// For each setting, the first rule that fits and names it decides.
namespace rcsock::base {

struct Config;

// What holds for one stream.
struct Terms {
  bool shm = true;
  bool rdma = true;
  std::uint32_t promote_ops = 0;
  std::uint64_t promote_bytes = 0;
};

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
};
constexpr int kMaxRules = 64;
struct Rules {
  Rule rules[kMaxRules];
  int count = 0;
  // Settings of the process that a rule made.
  bool sets_spin = false;
  bool sets_qps = false;
  bool sets_pinned = false;
  bool sets_shared = false;
  bool sets_ring = false;
  std::uint32_t spin_us = 0;
  std::uint32_t max_qps = 0;
  std::uint64_t max_pinned = 0;
  std::uint64_t max_shared = 0;
  std::uint64_t max_ring = 0;
};

// The rules for a program of these names.  False: `text` is malformed.
bool ParseRules(const char* text, const char* program, const char* comm,
                Rules* rules);

// `peer`: 16 bytes, IPv6 form; `port`: the service's.
Terms TermsFor(const Config& config, const std::uint8_t* peer,
               std::uint16_t port, bool accepted);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_POLICY_H_
