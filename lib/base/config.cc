#include "lib/base/config.h"

#include <cstdlib>
#include <cstring>

#include "lib/base/log.h"

namespace rcsock::base {
namespace {

Config config;

// A number of the environment; what is not one leaves `fallback` and is reported.
std::uint64_t Number(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*end != '\0' || *text == '-') {
    Log("%s=%s is not a number: ignored", name, text);
    return fallback;
  }
  return value;
}

}  // namespace

const Config& GetConfig() { return config; }

void LoadConfig() {
  config = Config{};
  log_level = static_cast<int>(Number("RCSOCK_LOG", 0));
  if (const char* lanes = std::getenv("RCSOCK_LANES")) {
    if (std::strcmp(lanes, "tcp") == 0) {
      config.enabled = config.shm = config.rdma = false;
    } else if (std::strcmp(lanes, "shm") == 0) {
      config.rdma = false;
    } else if (std::strcmp(lanes, "rdma") == 0) {
      config.shm = false;
    } else if (std::strcmp(lanes, "auto") != 0 && *lanes != '\0') {
      Log("RCSOCK_LANES=%s is none of auto, shm, rdma, tcp: staying on TCP",
          lanes);
      config.enabled = config.shm = config.rdma = false;
    }
  }
  if (const char* stats = std::getenv("RCSOCK_STATS")) {
    if (std::strlen(stats) < sizeof config.stats) {
      std::strcpy(config.stats, stats);
    } else {
      Log("RCSOCK_STATS is too long: ignored");
    }
  }
  config.spin_us =
      static_cast<std::uint32_t>(Number("RCSOCK_SPIN_US", config.spin_us));
  config.promote_ops = static_cast<std::uint32_t>(
      Number("RCSOCK_PROMOTE_OPS", config.promote_ops));
  config.promote_bytes = Number("RCSOCK_PROMOTE_BYTES", config.promote_bytes);
}

}  // namespace rcsock::base
