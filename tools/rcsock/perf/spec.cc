#include "tools/rcsock/perf/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/fields.h"

namespace rcsock::perf {
namespace {

constexpr std::array kModes = {"stream", "messages", "short"};
constexpr std::array kTransports = {"tcp", "shm", "rdma", "auto", "verbs"};
constexpr std::array kDirections = {"forward", "reverse", "both"};

template <typename Enum, std::size_t kSize>
bool Find(const std::array<const char*, kSize>& names, const std::string& name,
          Enum* value) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return false;
  *value = static_cast<Enum>(found - names.begin());
  return true;
}

template <typename Enum, std::size_t kSize>
Enum EnumField(const nlohmann::json& json, const char* field,
               const std::array<const char*, kSize>& names) {
  Enum value{};
  if (!Find(names, TextField(json, field, 16), &value)) BadField(field);
  return value;
}

nlohmann::json CpuToJson(int cpu) {
  return cpu < 0 ? nlohmann::json() : nlohmann::json(cpu);
}

int CpuFromJson(const nlohmann::json& json, const char* field) {
  return Field(json, field).is_null()
             ? -1
             : static_cast<int>(NumberField(json, field, 0, kMaxCpu));
}

}  // namespace

const char* Name(Mode mode) { return kModes[static_cast<std::size_t>(mode)]; }
const char* Name(Transport transport) {
  return kTransports[static_cast<std::size_t>(transport)];
}
const char* Name(Direction direction) {
  return kDirections[static_cast<std::size_t>(direction)];
}

bool FromName(const std::string& name, Transport* transport) {
  return Find(kTransports, name, transport);
}

bool UnderRcsock(Transport transport) {
  return transport != Transport::kTcp && transport != Transport::kVerbs;
}

bool Spec::Threads() const {
  return mode != Mode::kMessages ||
         (rate == 0 && active == connections && active <= 32);
}

std::uint64_t Spec::BytesEach() const {
  return bytes == 0 ? 0 : std::max<std::uint64_t>(1, bytes / connections);
}

std::string Spec::WhyNot() const {
  if (transport == Transport::kVerbs && connections > kMaxLinks) {
    return fmt::format("verbs: at most {} connections", kMaxLinks);
  }
  if (transport == Transport::kVerbs && rate > 0) return "verbs: no --rate";
  if (gpu >= 0 && transport == Transport::kVerbs) {
    return "verbs: no memory of a GPU";
  }
  if (gpu >= 0 && mode != Mode::kStream) {
    return "memory of a GPU: streams only";
  }
  return "";
}

nlohmann::json ToJson(const Spec& spec) {
  return {{"mode", Name(spec.mode)},
          {"transport", Name(spec.transport)},
          {"direction", Name(spec.direction)},
          {"seconds", spec.seconds},
          {"bytes", spec.bytes},
          {"size", spec.size},
          {"connections", spec.connections},
          {"active", spec.active},
          {"rate", spec.rate},
          {"settle", spec.settle},
          {"traced", spec.traced},
          {"client_cpu", CpuToJson(spec.client_cpu)},
          {"server_cpu", CpuToJson(spec.server_cpu)},
          {"gpu", CpuToJson(spec.gpu)}};
}

Spec SpecFromJson(const nlohmann::json& json) {
  Spec spec;
  spec.mode = EnumField<Mode>(json, "mode", kModes);
  spec.transport = EnumField<Transport>(json, "transport", kTransports);
  spec.direction = EnumField<Direction>(json, "direction", kDirections);
  spec.seconds = RealField(json, "seconds", kMinSeconds, kMaxSeconds);
  spec.bytes = NumberField(json, "bytes", 0, kMaxBytes);
  spec.size = NumberField(json, "size", 1, kMaxSize);
  spec.connections = NumberField(
      json, "connections", 1,
      spec.mode == Mode::kMessages ? kMaxConnections : kMaxParallel);
  spec.active = NumberField(
      json, "active", 1, std::min<std::uint64_t>(spec.connections, kMaxActive));
  spec.rate = RealField(json, "rate", 0, kMaxRate);
  spec.settle = RealField(json, "settle", 0, kMaxSettle);
  spec.traced = BoolField(json, "traced");
  spec.client_cpu = CpuFromJson(json, "client_cpu");
  spec.server_cpu = CpuFromJson(json, "server_cpu");
  spec.gpu = Field(json, "gpu").is_null()
                 ? -1
                 : static_cast<int>(NumberField(json, "gpu", 0, kMaxGpu));
  const std::string why_not = spec.WhyNot();
  if (!why_not.empty()) Fail("{}", why_not);
  return spec;
}

}  // namespace rcsock::perf
