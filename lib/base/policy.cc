#include "lib/base/policy.h"

#include <fnmatch.h>

#include <cstring>
#include <initializer_list>
#include <utility>

#include "lib/base/config.h"

namespace rcsock::base {
namespace {

// A piece of text; the text is not copied.
struct Piece {
  const char* begin;
  const char* end;
  bool Is(const char* word) const {
    const std::size_t length = std::strlen(word);
    return static_cast<std::size_t>(end - begin) == length &&
           std::memcmp(begin, word, length) == 0;
  }
  // Returns the text up to `separator`, and removes both.
  Piece Cut(char separator) {
    const char* at = begin;
    while (at != end && *at != separator) ++at;
    const Piece first{begin, at};
    begin = at == end ? end : at + 1;
    return first;
  }
  bool empty() const { return begin == end; }
};

bool Number(Piece piece, std::uint64_t most, std::uint64_t* value) {
  if (piece.empty()) return false;
  std::uint64_t sum = 0;
  for (const char* at = piece.begin; at != piece.end; ++at) {
    if (*at < '0' || *at > '9') return false;
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    if (digit > most || sum > (most - digit) / 10) return false;
    sum = sum * 10 + digit;
  }
  *value = sum;
  return true;
}

bool ReadProfile(Piece piece, Profile* profile) {
  for (const auto& [name, is] : {std::pair{"latency", Profile::kLatency},
                                 {"balanced", Profile::kBalanced},
                                 {"efficient", Profile::kEfficient}}) {
    if (piece.Is(name)) {
      *profile = is;
      return true;
    }
  }
  return false;
}

int Digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool Prefix(Piece piece, Rule* rule) {
  Piece hex = piece.Cut('/');
  std::uint64_t bits;
  if (hex.end - hex.begin != 32 || !Number(piece, 128, &bits)) return false;
  for (int i = 0; i < 16; ++i) {
    const int high = Digit(hex.begin[2 * i]);
    const int low = Digit(hex.begin[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    rule->prefix[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  rule->prefix_bits = static_cast<std::uint8_t>(bits);
  return true;
}

bool Ports(Piece piece, Rule* rule) {
  const Piece first = piece.Cut('-');
  std::uint64_t low;
  std::uint64_t high;
  if (!Number(first, 65535, &low) || !Number(piece, 65535, &high) ||
      low > high) {
    return false;
  }
  rule->first_port = static_cast<std::uint16_t>(low);
  rule->last_port = static_cast<std::uint16_t>(high);
  return true;
}

// Reads a list of shm and rdma, or tcp alone.
bool Lanes(Piece piece, char separator, bool* shm, bool* rdma) {
  *shm = *rdma = false;
  if (piece.Is("tcp")) return true;
  bool good = !piece.empty() && piece.end[-1] != separator;
  while (good && !piece.empty()) {
    const Piece one = piece.Cut(separator);
    *shm = *shm || one.Is("shm");
    *rdma = *rdma || one.Is("rdma");
    good = one.Is("shm") || one.Is("rdma");
  }
  if (!good) *shm = *rdma = false;
  return good;
}

bool Promote(Piece piece, Rule* rule) {
  if (piece.Is("eager")) {
    rule->promote = Rule::Promote::kEager;
  } else if (piece.Is("adaptive")) {
    rule->promote = Rule::Promote::kAdaptive;
  } else if (piece.Is("never")) {
    rule->promote = Rule::Promote::kNever;
  } else {
    return false;
  }
  return true;
}

bool Fits(Piece glob, const char* program, const char* comm) {
  char pattern[128];
  const auto length = static_cast<std::size_t>(glob.end - glob.begin);
  if (length >= sizeof pattern) return false;
  std::memcpy(pattern, glob.begin, length);
  pattern[length] = '\0';
  return ::fnmatch(pattern, program, 0) == 0 ||
         ::fnmatch(pattern, comm, 0) == 0;
}

// NAME, NAME:PORT, -NAME, -NAME:PORT.
bool IsDevice(Piece entry) {
  constexpr std::ptrdiff_t kLongestName = 63;  // IBV_SYSFS_NAME_MAX, with its 0
  constexpr std::uint64_t kMostPort = 255;
  if (!entry.empty() && *entry.begin == '-') ++entry.begin;
  const char* const end = entry.end;
  const Piece name = entry.Cut(':');
  if (name.empty() || name.end - name.begin > kLongestName) return false;
  for (const char* at = name.begin; at != name.end; ++at) {
    const bool letter =
        (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z');
    const bool digit = *at >= '0' && *at <= '9';
    // strchr would find the zero as well.
    if (!letter && !digit && (*at == '\0' || !std::strchr("_.-*?", *at))) {
      return false;
    }
  }
  std::uint64_t port = 0;
  return name.end == end || (Number(entry, kMostPort, &port) && port != 0);
}

bool IsDeviceList(Piece list) {
  if (list.empty() || list.end[-1] == '+') return false;
  while (!list.empty()) {
    if (!IsDevice(list.Cut('+'))) return false;
  }
  return true;
}

// Reads a setting of the process.
template <class T>
bool Setting(Piece value, std::uint64_t most, bool* sets, T* to) {
  std::uint64_t number = 0;
  *sets = Number(value, most, &number);
  *to = static_cast<T>(number);
  return *sets;
}

// Keeps a setting of the process that no earlier rule has made.
template <class T>
void Keep(bool given, T value, bool* sets, T* to) {
  if (!given || *sets) return;
  *sets = true;
  *to = value;
}

// One rule, while it is read for a program of these names. Each function that
// takes a pair of key and value returns false if it does not know the key, or
// if the value is malformed.
class RuleReader {
 public:
  RuleReader(const char* program, const char* comm)
      : program_(program), comm_(comm) {}

  // Returns false if `text` is malformed.
  bool Read(Piece text) {
    while (!text.empty()) {
      Piece value = text.Cut(',');
      const Piece key = value.Cut('=');
      if (!TakeProgram(key, value) && !TakeStreams(key, value) &&
          !TakeLane(key, value) && !TakeProfile(key, value) &&
          !TakeProcess(key, value)) {
        return false;
      }
    }
    return !of_streams_ || !OfProcess();
  }

  // Adds the rule, if it is for this program. Returns false if there is no
  // room.
  bool AddTo(Rules* rules) {
    if (!fits_) return true;
    AddProcess(rules);
    if (devices_.begin != nullptr) {
      rule_.devices = AddDevices(devices_.begin, devices_.end, rules);
      if (rule_.devices == 0) return false;
    }
    if (!OfLane()) return true;
    if (rules->count == kMaxRules) return false;
    rules->rules[rules->count++] = rule_;
    return true;
  }

 private:
  bool TakeProgram(Piece key, Piece value) {
    if (!key.Is("prog")) return false;
    fits_ = fits_ && Fits(value, program_, comm_);
    return true;
  }

  // Which streams the rule is for.
  bool TakeStreams(Piece key, Piece value) {
    if (key.Is("dir")) {
      of_streams_ = true;
      rule_.directions = value.Is("in") ? Rule::kIn : Rule::kOut;
      return value.Is("in") || value.Is("out");
    }
    if (key.Is("addr")) {
      of_streams_ = true;
      return Prefix(value, &rule_);
    }
    if (!key.Is("port")) return false;
    of_streams_ = true;
    return Ports(value, &rule_);
  }

  // Which lanes the streams may have, and of which kind.
  bool TakeLane(Piece key, Piece value) {
    if (key.Is("lanes")) {
      rule_.sets_lanes = true;
      return Lanes(value, '+', &rule_.shm, &rule_.rdma);
    }
    if (key.Is("promote")) return Promote(value, &rule_);
    if (key.Is("devices")) {
      devices_ = value;
      return IsDeviceList(value);
    }
    std::uint64_t number = 0;
    if (key.Is("ack")) {
      if (!Number(value, kMostAckMs, &number)) return false;
      rule_.ack_ms = static_cast<std::uint16_t>(number);
      return number != 0;
    }
    if (key.Is("retries")) {
      if (!Number(value, kMostRetries, &number)) return false;
      rule_.retries = static_cast<std::uint8_t>(number);
      return number != 0;
    }
    if (!key.Is("tclass")) return false;
    if (!Number(value, kMostTrafficClass, &number)) return false;
    rule_.traffic_class = static_cast<std::int16_t>(number);
    return true;
  }

  bool TakeProfile(Piece key, Piece value) {
    if (!key.Is("profile")) return false;
    process_.sets_profile = true;
    return ReadProfile(value, &process_.profile);
  }
  bool TakeProcess(Piece key, Piece value) {
    constexpr std::uint64_t kMostNumber = ~std::uint32_t{0};
    constexpr std::uint64_t kMostBytes = ~std::uint64_t{0} / 2;
    Rules& to = process_;
    if (key.Is("spin")) {
      return Setting(value, kMostNumber, &to.sets_spin, &to.spin_us);
    }
    if (key.Is("qps")) {
      return Setting(value, kMostNumber, &to.sets_qps, &to.max_qps);
    }
    if (key.Is("pinned")) {
      return Setting(value, kMostBytes, &to.sets_pinned, &to.max_pinned);
    }
    if (key.Is("shared")) {
      return Setting(value, kMostBytes, &to.sets_shared, &to.max_shared);
    }
    return key.Is("ring") &&
           Setting(value, kMostBytes, &to.sets_ring, &to.max_ring) &&
           to.max_ring >= kLeastMaxRing;
  }

  bool OfProcess() const {
    return process_.sets_profile || process_.sets_spin || process_.sets_qps ||
           process_.sets_pinned || process_.sets_shared || process_.sets_ring;
  }
  bool OfLane() const {
    return rule_.sets_lanes || rule_.promote != Rule::Promote::kUnset ||
           rule_.ack_ms != 0 || rule_.retries != 0 ||
           rule_.traffic_class >= 0 || rule_.devices != 0;
  }

  void AddProcess(Rules* rules) const {
    const Rules& is = process_;
    Keep(is.sets_profile, is.profile, &rules->sets_profile, &rules->profile);
    Keep(is.sets_spin, is.spin_us, &rules->sets_spin, &rules->spin_us);
    Keep(is.sets_qps, is.max_qps, &rules->sets_qps, &rules->max_qps);
    Keep(is.sets_pinned, is.max_pinned, &rules->sets_pinned,
         &rules->max_pinned);
    Keep(is.sets_shared, is.max_shared, &rules->sets_shared,
         &rules->max_shared);
    Keep(is.sets_ring, is.max_ring, &rules->sets_ring, &rules->max_ring);
  }

  const char* const program_;
  const char* const comm_;
  Rule rule_;
  Rules process_;  // settings of the process alone
  Piece devices_{nullptr, nullptr};
  bool fits_ = true;
  bool of_streams_ = false;
};

bool ParseRule(Piece text, const char* program, const char* comm,
               Rules* rules) {
  RuleReader rule(program, comm);
  return rule.Read(text) && rule.AddTo(rules);
}

bool HasPrefix(const std::uint8_t* address, const Rule& rule) {
  const int whole = rule.prefix_bits / 8;
  if (std::memcmp(address, rule.prefix, static_cast<std::size_t>(whole)) != 0) {
    return false;
  }
  const int rest = rule.prefix_bits % 8;
  return rest == 0 || (address[whole] ^ rule.prefix[whole]) >> (8 - rest) == 0;
}

bool Fits(const Rule& rule, const std::uint8_t* peer, std::uint16_t port,
          bool accepted) {
  const std::uint8_t direction = accepted ? Rule::kIn : Rule::kOut;
  return (rule.directions & direction) != 0 && port >= rule.first_port &&
         port <= rule.last_port && HasPrefix(peer, rule);
}

}  // namespace

bool IsDevice(const char* entry) {
  return IsDevice(Piece{entry, entry + std::strlen(entry)});
}

bool ParseLanes(const char* text, bool* shm, bool* rdma) {
  const Piece piece{text, text + std::strlen(text)};
  if (!piece.empty() && !piece.Is("auto")) {
    return Lanes(piece, ',', shm, rdma);
  }
  *shm = *rdma = true;
  return true;
}

bool ParseProfile(const char* word, Profile* profile) {
  return ReadProfile({word, word + std::strlen(word)}, profile);
}

std::uint16_t AddDevices(const char* begin, const char* end, Rules* rules) {
  if (!IsDeviceList({begin, end})) return 0;
  const auto length = static_cast<std::size_t>(end - begin);
  for (std::size_t at = 1; at < rules->devices_end;) {
    const std::size_t known = std::strlen(rules->devices + at);
    if (known == length &&
        std::memcmp(rules->devices + at, begin, known) == 0) {
      return static_cast<std::uint16_t>(at);
    }
    at += known + 1;
  }
  const std::uint16_t at = rules->devices_end;
  if (length + 1 > sizeof rules->devices - at) return 0;
  std::memcpy(rules->devices + at, begin, length);
  rules->devices[at + length] = '\0';
  rules->devices_end = static_cast<std::uint16_t>(at + length + 1);
  return at;
}

bool MayUseDevice(const char* devices, const char* name, unsigned port) {
  bool any = false;
  bool named = false;
  Piece all{devices, devices + std::strlen(devices)};
  while (!all.empty()) {
    Piece entry = all.Cut('+');
    const bool leave = *entry.begin == '-';
    if (leave) ++entry.begin;
    const Piece glob = entry.Cut(':');
    std::uint64_t only = port;
    const bool fits = Fits(glob, name, name) &&
                      (entry.empty() || Number(entry, port, &only)) &&
                      only == port;
    if (leave && fits) return false;
    any = any || !leave;
    named = named || (!leave && fits);
  }
  return named || !any;
}

bool ParseRules(const char* text, const char* program, const char* comm,
                Rules* rules) {
  *rules = Rules();
  Piece all{text, text + std::strlen(text)};
  while (!all.empty()) {
    if (!ParseRule(all.Cut(';'), program, comm, rules)) {
      *rules = Rules();
      return false;
    }
  }
  return true;
}

Terms TermsFor(const Config& config, const std::uint8_t* peer,
               std::uint16_t port, bool accepted) {
  Terms terms = config.terms;
  bool lanes = config.lanes_given;
  bool promote = config.promote_given;
  bool never = false;
  for (int i = 0; i < config.rules.count && !(lanes && promote); ++i) {
    const Rule& rule = config.rules.rules[i];
    if (!Fits(rule, peer, port, accepted)) continue;
    if (rule.sets_lanes && !lanes) {
      lanes = true;
      terms.shm = rule.shm;
      terms.rdma = rule.rdma;
    }
    if (rule.promote != Rule::Promote::kUnset && !promote) {
      promote = true;
      never = rule.promote == Rule::Promote::kNever;
      if (rule.promote == Rule::Promote::kEager) terms.promote_ops = 1;
    }
  }
  if (never) terms.shm = terms.rdma = false;
  if (config.no_rdma) terms.rdma = false;
  return terms;
}

Fabric FabricFor(const Config& config, const std::uint8_t* peer,
                 std::uint16_t port, bool accepted) {
  Fabric fabric;
  // The environment's settings come before all rules.
  if (config.ack_ms != 0) fabric.ack_ms = config.ack_ms;
  if (config.retries != 0) fabric.retries = config.retries;
  fabric.traffic_class = config.traffic_class;
  std::uint16_t devices = config.devices;
  bool ack = config.ack_ms != 0;
  bool retries = config.retries != 0;
  for (int i = 0; i < config.rules.count; ++i) {
    const Rule& rule = config.rules.rules[i];
    if (!Fits(rule, peer, port, accepted)) continue;
    if (rule.ack_ms != 0 && !ack) {
      ack = true;
      fabric.ack_ms = rule.ack_ms;
    }
    if (rule.retries != 0 && !retries) {
      retries = true;
      fabric.retries = rule.retries;
    }
    if (fabric.traffic_class < 0) fabric.traffic_class = rule.traffic_class;
    if (devices == 0) devices = rule.devices;
  }
  if (devices != 0) fabric.devices = config.rules.devices + devices;
  return fabric;
}

}  // namespace rcsock::base
