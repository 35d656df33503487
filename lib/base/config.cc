#include "lib/base/config.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "lib/base/bytes.h"
#include "lib/base/env.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/pin_count.h"
#include "lib/base/start_data.h"

namespace rcsock::base {
namespace {

RCSOCK_START_DATA Config config;

// Reads a number of the environment, from `least` to `most`. If the text is not
// such a number, returns `fallback` and reports that. strtoull alone would take
// spaces, signs and numbers that do not fit.
[[gnu::cold]] std::uint64_t Number(const char* name, std::uint64_t fallback,
                                   std::uint64_t most,
                                   std::uint64_t least = 0) {
  const char* text = Env(name);
  if (text == nullptr || *text == '\0') return fallback;
  std::uint64_t value = 0;
  bool good = true;
  for (const char* at = text; good && *at != '\0'; ++at) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    good = *at >= '0' && *at <= '9' && digit <= most &&
           value <= (most - digit) / 10;
    value = value * 10 + digit;
  }
  if (good && value >= least) return value;
  Log("%s=%s is not a number from %llu to %llu: ignored", name, text,
      static_cast<unsigned long long>(least),
      static_cast<unsigned long long>(most));
  return fallback;
}
constexpr std::uint64_t kMostNumber = ~std::uint32_t{0};

// As Number, with K, M or G after the number.
[[gnu::cold]] std::uint64_t Bytes(const char* name, std::uint64_t fallback) {
  const char* text = Env(name);
  if (text == nullptr || *text == '\0') return fallback;
  std::uint64_t bytes = 0;
  if (ParseBytes(text, &bytes)) return bytes;
  Log("%s=%s is not a number of bytes (K, M, G): ignored", name, text);
  return fallback;
}

// Reads the key now, before the first stream needs it: a daemon may change its
// user, its directory or its root. If the key cannot be read, there is no RDMA:
// without the key anybody could open a lane.
void ReadKey(const char* path) {
  // The open does not wait: a pipe may have no writer, and the program must
  // start.
  const long fd =
      ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  std::size_t size = 0;
  long n = fd < 0 ? -1 : 1;
  while (n > 0 && size < sizeof config.key) {
    n = ::syscall(SYS_read, fd, config.key + size, sizeof config.key - size);
    if (n > 0) size += static_cast<std::size_t>(n);
  }
  if (fd >= 0) ::syscall(SYS_close, fd);
  if (n < 0 || size < kLeastKey) {
    Log("RCSOCK_KEY_FILE=%s can't be read or has less than 32 bytes: no RDMA",
        path);
    config.rdma = false;
    config.no_rdma = true;
    return;
  }
  config.key_size = static_cast<std::uint32_t>(size);
}

[[gnu::cold]] bool Given(const char* name) {
  const char* text = Env(name);
  return text != nullptr && *text != '\0';
}

[[gnu::cold]] void StayOnTcp() {
  config.enabled = config.shm = config.rdma = false;
}

[[gnu::cold]] void ReadLanes(const char* text) {
  if (!ParseLanes(text, &config.shm, &config.rdma)) {
    Log("RCSOCK_LANES=%s is none of auto, tcp, shm, rdma, and shm,rdma: "
        "staying on TCP",
        text);
    StayOnTcp();
  }
  config.enabled = config.shm || config.rdma;
}

[[gnu::cold]] void ReadStats(const char* path) {
  if (std::strlen(path) < sizeof config.stats) {
    std::strcpy(config.stats, path);
  } else {
    Log("RCSOCK_STATS is too long: ignored");
  }
}

[[gnu::cold]] void ReadMeetDir(const char* path) {
  if (*path == '/' && std::strlen(path) < sizeof config.meet_dir) {
    std::strcpy(config.meet_dir, path);
  } else {
    Log("RCSOCK_MEET_DIR=%s is no absolute path: ignored", path);
  }
}

[[gnu::cold]] void ReadPort() {
  const std::uint64_t port =
      Number("RCSOCK_RDMA_PORT", config.rdma_port, 65535);
  if (port != 0) {
    config.rdma_port = static_cast<std::uint16_t>(port);
  } else {
    Log("RCSOCK_RDMA_PORT=0 is not a port: ignored");
  }
}

void ReadPeers(const char* text) {
  while (*text != '\0') {
    char* end;
    const unsigned long uid = std::strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || uid >= ~std::uint32_t{0} ||
        (*end != ',' && *end != '\0') ||
        config.peer_count == Config::kMostPeers) {
      Log("RCSOCK_PEERS is no list of at most %d uids: it names nobody",
          Config::kMostPeers);
      config.peer_count = 0;
      return;
    }
    config.peers[config.peer_count++] = static_cast<std::uint32_t>(uid);
    text = *end == ',' ? end + 1 : end;
  }
}

// Reads a list with commas. If the list can't be read, the process gets no RDMA
// lanes: they might use a device that the list would have excluded.
void ReadDevices(const char* text) {
  char list[kDeviceBytes];
  const std::size_t length = std::strlen(text);
  if (length < sizeof list) {
    for (std::size_t i = 0; i < length; ++i) {
      // In rules '+' stands between devices; here it is no part of a name.
      list[i] = text[i] == ',' ? '+' : text[i] == '+' ? ',' : text[i];
    }
    config.devices = AddDevices(list, list + length, &config.rules);
  }
  if (config.devices != 0) return;
  Log("RCSOCK_DEVICES=%s is no list of devices, as mlx5_0,mlx5_1:1,-irdma*: no "
      "RDMA",
      text);
  config.rdma = false;
  config.no_rdma = true;
}

void ReadFabric() {
  config.ack_ms = static_cast<std::uint16_t>(
      Number("RCSOCK_ACK_TIMEOUT_MS", 0, kMostAckMs, 1));
  config.retries = static_cast<std::uint8_t>(
      Number("RCSOCK_ACK_RETRIES", 0, kMostRetries, 1));
  if (Given("RCSOCK_TRAFFIC_CLASS")) {
    constexpr std::uint64_t kNone = kMostTrafficClass + 1;
    const std::uint64_t value =
        Number("RCSOCK_TRAFFIC_CLASS", kNone, kMostTrafficClass);
    if (value != kNone) {
      config.traffic_class = static_cast<std::int16_t>(value);
    }
  }
  if (Given("RCSOCK_DEVICES")) ReadDevices(Env("RCSOCK_DEVICES"));
}

void ReadInPlace(const char* text) {
  if (std::strcmp(text, "off") == 0) {
    config.in_place = InPlace::kOff;
  } else if (std::strcmp(text, "any") == 0) {
    config.in_place = InPlace::kAny;
  } else if (std::strcmp(text, "always") == 0) {
    config.in_place = InPlace::kAlways;
  } else if (std::strcmp(text, "auto") != 0) {
    Log("RCSOCK_RECV_IN_PLACE=%s is none of auto, any, off, always: ignored",
        text);
  }
}

void ReadRings(const char* text) {
  config.carry_rings = std::strcmp(text, "lane") == 0;
  if (!config.carry_rings && std::strcmp(text, "tcp") != 0) {
    Log("RCSOCK_IO_URING=%s is neither tcp nor lane: ignored", text);
  }
}

void ReadPass(const char* text) {
  config.gpu_pass = std::strcmp(text, "on") == 0;
  if (!config.gpu_pass && std::strcmp(text, "off") != 0) {
    Log("RCSOCK_GPU_PASS=%s is neither on nor off: ignored", text);
  }
}

// Reads the names of this program: that of its file, and the one that a script
// is called by.
void ReadNames(char* program, char* comm, std::size_t size) {
  program[0] = comm[0] = '\0';
  long n = ::syscall(SYS_readlink, "/proc/self/exe", program, size - 1);
  program[n > 0 ? n : 0] = '\0';
  const char* const name = LastPart(program);
  std::memmove(program, name, std::strlen(name) + 1);
  const long fd =
      ::syscall(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  n = ::syscall(SYS_read, fd, comm, size - 1);
  ::syscall(SYS_close, fd);
  comm[n > 0 ? n - 1 : 0] = '\0';  // without its line feed
}

// If the process may run on two CPUs, one system call says so; sysconf() would
// read files. If the process may run on one CPU only, the other CPUs count: a
// peer may run there.
[[gnu::cold]] bool OneCpu() {
  std::uint64_t may[128];  // 8192 CPUs; with more the kernel refuses
  const long n = ::syscall(SYS_sched_getaffinity, 0, sizeof may, may);
  int count = 0;
  for (long i = 0; i < n / 8 && count < 2; ++i) {
    count += __builtin_popcountll(may[i]);
  }
  return count < 2 && ::sysconf(_SC_NPROCESSORS_ONLN) == 1;
}

// If there is one CPU, the awaited thread cannot run during the spin.
[[gnu::cold]] void TakeProfile(Profile profile) {
  config.spin_us =
      profile == Profile::kEfficient || OneCpu() ? 0 : Config::kSpinUs;
  config.spin_earned = profile == Profile::kBalanced;
}

[[gnu::cold]] void ReadProfile(const char* text) {
  Profile profile;
  if (ParseProfile(text, &profile)) {
    TakeProfile(profile);
  } else {
    Log("RCSOCK_PROFILE=%s is none of latency, balanced, efficient: ignored",
        text);
  }
}

void ReadRules(const char* text) {
  char program[256];
  char comm[256];
  ReadNames(program, comm, sizeof program);
  if (!ParseRules(text, program, comm, &config.rules)) {
    Log("RCSOCK_RULES is malformed: staying on TCP");
    StayOnTcp();
    return;
  }
  const Rules& rules = config.rules;
  if (rules.sets_profile) TakeProfile(rules.profile);
  if (rules.sets_spin) {
    config.spin_us = rules.spin_us;
    config.spin_earned = false;
  }
  if (rules.sets_qps) config.max_qps = rules.max_qps;
  if (rules.sets_pinned) config.max_pinned = rules.max_pinned;
  if (rules.sets_shared) config.max_shared = rules.max_shared;
  if (rules.sets_ring) config.max_ring = rules.max_ring;
}

// Reads when streams get a lane, and how much lanes may take. A value that the
// environment does not give stays, so the rules come first.
[[gnu::cold]] void ReadLimits() {
  if (Given("RCSOCK_PROFILE")) ReadProfile(Env("RCSOCK_PROFILE"));
  constexpr std::uint64_t kNone = kMostNumber + 1;
  const std::uint64_t spin_us = Number("RCSOCK_SPIN_US", kNone, kMostNumber);
  if (spin_us != kNone) {
    config.spin_us = static_cast<std::uint32_t>(spin_us);
    config.spin_earned = false;
  }
  config.promote_ops = static_cast<std::uint32_t>(
      Number("RCSOCK_PROMOTE_OPS", config.promote_ops, kMostNumber));
  config.promote_bytes = Bytes("RCSOCK_PROMOTE_BYTES", config.promote_bytes);
  config.max_qps = static_cast<std::uint32_t>(
      Number("RCSOCK_MAX_QPS", config.max_qps, kMostNumber));
  config.max_pinned = Bytes("RCSOCK_MAX_PINNED", config.max_pinned);
  config.max_shared = Bytes("RCSOCK_MAX_SHARED", config.max_shared);
  const std::uint64_t ring = Bytes("RCSOCK_MAX_RING", config.max_ring);
  if (ring == 0 || ring >= kLeastMaxRing) {
    config.max_ring = ring;
  } else {
    Log("RCSOCK_MAX_RING=%s is less than 16K: ignored", Env("RCSOCK_MAX_RING"));
  }
}

}  // namespace

[[gnu::hot]] const Config& GetConfig() { return config; }

[[gnu::cold]] void LoadConfig() {
  config = Config{};
  InitLog(0);  // finds stderr, should the level be no number
  if (MorePrivilegedThanCaller()) {
    // A caller with fewer rights must not control what the program does with
    // its rights.
    StayOnTcp();
    config.terms = {false, false, config.promote_ops, config.promote_bytes};
    return;
  }
  // Before the first line is logged.
  OpenLogFile(Env("RCSOCK_LOG_FILE"));
  log_level = static_cast<int>(Number("RCSOCK_LOG", 0, 9));
  if (const char* lanes = Env("RCSOCK_LANES")) ReadLanes(lanes);
  if (const char* stats = Env("RCSOCK_STATS")) ReadStats(stats);
  ReadPort();
  if (Given("RCSOCK_KEY_FILE")) ReadKey(Env("RCSOCK_KEY_FILE"));
  if (Given("RCSOCK_PEERS")) ReadPeers(Env("RCSOCK_PEERS"));
  if (Given("RCSOCK_MEET_DIR")) ReadMeetDir(Env("RCSOCK_MEET_DIR"));
  TakeProfile(Profile::kBalanced);
  if (Given("RCSOCK_RULES")) ReadRules(Env("RCSOCK_RULES"));
  ReadFabric();
  ReadLimits();
  PinCount::SetLimit(config.max_pinned);
  if (Given("RCSOCK_IO_URING")) ReadRings(Env("RCSOCK_IO_URING"));
  if (Given("RCSOCK_RECV_IN_PLACE")) ReadInPlace(Env("RCSOCK_RECV_IN_PLACE"));
  if (Given("RCSOCK_GPU_PASS")) ReadPass(Env("RCSOCK_GPU_PASS"));
  config.lanes_given = Given("RCSOCK_LANES");
  config.promote_given =
      Given("RCSOCK_PROMOTE_OPS") || Given("RCSOCK_PROMOTE_BYTES");
  config.terms = {config.shm, config.rdma, config.promote_ops,
                  config.promote_bytes};
}

}  // namespace rcsock::base
