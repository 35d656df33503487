#include "tools/rcsock/config/config.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/config.h"
#include "lib/base/path.h"
#include "lib/base/policy.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

struct Wrong : std::runtime_error {
  Wrong(const toml::node& where, const std::string& what)
      : std::runtime_error(what), line(where.source().begin.line) {}
  std::uint32_t line;
};

bool OneOf(std::string_view word, std::initializer_list<const char*> words) {
  for (const char* one : words) {
    if (word == one) return true;
  }
  return false;
}

// Returns a string, or a list of strings.
Strings StringsOf(const toml::node& node, const char* key) {
  Strings all;
  const auto add = [&](const toml::node& one) {
    const auto text = one.value_exact<std::string>();
    if (!text || text->empty()) {
      throw Wrong(
          one,
          fmt::format("{} is a word in quotes, or a list of words in quotes",
                      key));
    }
    all.push_back(*text);
  };
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& one : *list) add(one);
    if (all.empty()) throw Wrong(node, fmt::format("{} is an empty list", key));
  } else {
    add(node);
  }
  return all;
}

std::uint64_t NumberOf(const toml::node& node, const char* key,
                       std::uint64_t most) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < 0 || static_cast<std::uint64_t>(*value) > most) {
    throw Wrong(node, fmt::format("{} is a number from 0 to {}", key, most));
  }
  return static_cast<std::uint64_t>(*value);
}

// Returns a number, or the bytes of "64M".
std::uint64_t BytesOf(const toml::node& node, const char* key) {
  if (node.is_integer()) {
    return NumberOf(node, key, std::numeric_limits<std::int64_t>::max());
  }
  const auto text = node.value_exact<std::string>();
  std::uint64_t value = 0;
  if (!text || !base::ParseBytes(text->c_str(), &value) ||
      value > std::uint64_t{1} << 62) {
    throw Wrong(node, fmt::format("{} is a number of bytes, as 1048576, "
                                  "\"64M\" or \"2G\"",
                                  key));
  }
  return value;
}

std::string ProgramOf(const std::string& glob, const toml::node& node) {
  if (glob.find_first_of(",;=/") != std::string::npos || glob.size() > 120) {
    throw Wrong(node, fmt::format("program \"{}\": a name without a path, as "
                                  "\"redis-*\"",
                                  glob));
  }
  return "prog=" + glob;
}

std::string AddressOf(const std::string& text, const toml::node& node) {
  const std::size_t slash = text.find('/');
  const std::string host = text.substr(0, slash);
  std::uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  int most = 32;
  bool good = ::inet_pton(AF_INET, host.c_str(), bytes + 12) == 1;
  if (!good) {
    most = 128;
    good = ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
  }
  int bits = most;
  if (good && slash != std::string::npos) {
    const char* begin = text.data() + slash + 1;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(begin, end, bits);
    good = parsed.ec == std::errc() && parsed.ptr == end && bits >= 0 &&
           bits <= most;
  }
  if (!good) {
    throw Wrong(node, fmt::format("address \"{}\" is no prefix, as "
                                  "\"10.0.0.0/8\" or \"fd00::/8\"",
                                  text));
  }
  std::string result = "addr=";
  for (std::uint8_t byte : bytes) result += fmt::format("{:02x}", byte);
  return fmt::format("{}/{}", result, most == 32 ? bits + 96 : bits);
}

std::string PortOf(const toml::node& node) {
  constexpr char kForm[] = "port is a number, or a range as \"6000-6999\"";
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  if (node.is_integer()) {
    first = last = NumberOf(node, "port", 65535);
  } else {
    const auto text = node.value_exact<std::string>();
    if (!text) throw Wrong(node, kForm);
    const std::size_t dash = text->find('-');
    const auto number = [&](std::string_view part) {
      std::uint64_t value = 0;
      const auto parsed =
          std::from_chars(part.data(), part.data() + part.size(), value);
      if (parsed.ec != std::errc() || parsed.ptr != part.data() + part.size() ||
          value > 65535) {
        throw Wrong(node, kForm);
      }
      return value;
    };
    first = number(std::string_view(*text).substr(0, dash));
    last = dash == std::string::npos
               ? first
               : number(std::string_view(*text).substr(dash + 1));
  }
  if (first == 0 || first > last) throw Wrong(node, kForm);
  return fmt::format("port={}-{}", first, last);
}

Strings PortsOf(const toml::node& node) {
  const toml::array* const list = node.as_array();
  if (list == nullptr) return {PortOf(node)};
  Strings all;
  for (const toml::node& one : *list) all.push_back(PortOf(one));
  if (all.empty()) throw Wrong(node, "port is an empty list");
  return all;
}

std::string LanesOf(const toml::node& node) {
  std::string lanes;
  for (const std::string& one : StringsOf(node, "lanes")) {
    if (one == "auto" || one == "tcp") {
      if (node.is_array() && node.as_array()->size() > 1) {
        throw Wrong(node, fmt::format("lanes: \"{}\" stands alone", one));
      }
      return one == "tcp" ? "lanes=tcp" : "lanes=shm+rdma";
    }
    if (!OneOf(one, {"shm", "rdma"})) {
      throw Wrong(node, fmt::format("lanes: \"{}\" is none of auto, shm, rdma, "
                                    "tcp",
                                    one));
    }
    lanes += (lanes.empty() ? "lanes=" : "+") + one;
  }
  return lanes;
}

std::string PromoteOf(const toml::node& node) {
  const auto text = node.value_exact<std::string>();
  if (!text || !OneOf(*text, {"eager", "adaptive", "never"})) {
    throw Wrong(node, "promote is \"eager\", \"adaptive\" or \"never\"");
  }
  return "promote=" + *text;
}

std::string ProfileOf(const toml::node& node) {
  const auto text = node.value_exact<std::string>();
  if (!text || !OneOf(*text, {"latency", "balanced", "efficient"})) {
    throw Wrong(node, "profile is \"latency\", \"balanced\" or \"efficient\"");
  }
  return "profile=" + *text;
}

// Returns a number from `least` to `most`, in `unit`.
std::uint64_t RangeOf(const toml::node& node, const char* key,
                      std::uint64_t least, std::uint64_t most,
                      const char* unit) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < static_cast<std::int64_t>(least) ||
      *value > static_cast<std::int64_t>(most)) {
    throw Wrong(node, fmt::format("{} is a number from {} to {}{}", key, least,
                                  most, unit));
  }
  return static_cast<std::uint64_t>(*value);
}

std::string DevicesOf(const toml::node& node) {
  std::string devices;
  for (const std::string& one : StringsOf(node, "devices")) {
    if (one.find('\0') != std::string::npos || !base::IsDevice(one.c_str())) {
      throw Wrong(node, fmt::format("devices: \"{}\" is no device, as "
                                    "\"mlx5_0\", \"mlx5_1:1\" or \"-irdma*\"",
                                    one));
    }
    devices += (devices.empty() ? "devices=" : "+") + one;
  }
  // ReadPolicy has a bound for all lists together.
  if (devices.size() >= base::kDeviceBytes) {
    throw Wrong(node, "devices is too long a list");
  }
  return devices;
}

// The conditions of a rule are lists.  The compiler makes a rule for each
// combination.
class Compiler {
 public:
  // Adds to `lists` each list of devices that is not in it yet.
  Compiler(bool top, Strings* lists) : top_(top), lists_(lists) {}

  void Take(std::string_view key, const toml::node& node) {
    if (TakeOfStreams(key, node) || TakeOfProcess(key, node)) return;
    if (top_) throw Wrong(node, fmt::format("\"{}\" is not known here", key));
    if (TakeCondition(key, node)) return;
    throw Wrong(node, fmt::format("\"{}\" is not known in a rule", key));
  }

  Strings Finish(const toml::node& where) const {
    if (process_ != nullptr && of_streams_) {
      throw Wrong(*process_, process_key_ +
                                 " is of a whole process: the rule may only "
                                 "name programs");
    }
    if (settings_.empty()) {
      if (top_) return {};
      throw Wrong(where, "the rule sets nothing");
    }
    Strings all;
    for (const std::string& conditions : conditions_) {
      all.push_back(conditions + settings_);
    }
    return all;
  }

 private:
  // Each of these functions returns false if it does not know the key.
  bool TakeOfStreams(std::string_view key, const toml::node& node) {
    if (key == "lanes") {
      Set(LanesOf(node));
    } else if (key == "promote") {
      Set(PromoteOf(node));
    } else if (key == "ack_timeout_ms") {
      Set(fmt::format("ack={}", RangeOf(node, "ack_timeout_ms", 1,
                                        base::kMostAckMs, " milliseconds")));
    } else if (key == "ack_retries") {
      Set(fmt::format("retries={}",
                      RangeOf(node, "ack_retries", 1, base::kMostRetries, "")));
    } else if (key == "traffic_class") {
      Set(fmt::format("tclass={}", RangeOf(node, "traffic_class", 0,
                                           base::kMostTrafficClass, "")));
    } else if (key == "devices") {
      const std::string devices = DevicesOf(node);
      if (std::find(lists_->begin(), lists_->end(), devices) == lists_->end()) {
        lists_->push_back(devices);
      }
      Set(devices);
    } else {
      return false;
    }
    return true;
  }

  bool TakeOfProcess(std::string_view key, const toml::node& node) {
    if (key == "profile") {
      SetProcess(node, key, ProfileOf(node));
    } else if (key == "spin_us") {
      SetProcess(node, key,
                 fmt::format("spin={}", NumberOf(node, "spin_us", 1'000'000)));
    } else if (key == "max_qps") {
      SetProcess(node, key,
                 fmt::format("qps={}", NumberOf(node, "max_qps", 1'000'000)));
    } else if (key == "max_pinned") {
      SetProcess(node, key,
                 fmt::format("pinned={}", BytesOf(node, "max_pinned")));
    } else if (key == "max_shared") {
      SetProcess(node, key,
                 fmt::format("shared={}", BytesOf(node, "max_shared")));
    } else if (key == "max_ring") {
      const std::uint64_t bytes = BytesOf(node, "max_ring");
      if (bytes < base::kLeastMaxRing) {
        throw Wrong(node, "max_ring is at least \"16K\"");
      }
      SetProcess(node, key, fmt::format("ring={}", bytes));
    } else {
      return false;
    }
    return true;
  }

  bool TakeCondition(std::string_view key, const toml::node& node) {
    Strings all;
    if (key == "program") {
      for (const std::string& one : StringsOf(node, "program")) {
        all.push_back(ProgramOf(one, node));
      }
      Multiply(all);
      return true;
    }
    if (key == "address") {
      for (const std::string& one : StringsOf(node, "address")) {
        all.push_back(AddressOf(one, node));
      }
    } else if (key == "port") {
      all = PortsOf(node);
    } else if (key == "direction") {
      const auto text = node.value_exact<std::string>();
      if (!text || !OneOf(*text, {"in", "out"})) {
        throw Wrong(node, "direction is \"in\" (accepted) or \"out\"");
      }
      all.push_back("dir=" + *text);
    } else {
      return false;
    }
    of_streams_ = true;
    Multiply(all);
    return true;
  }

  void Set(const std::string& setting) {
    settings_ += (settings_.empty() ? "" : ",") + setting;
  }
  void SetProcess(const toml::node& node, std::string_view key,
                  const std::string& setting) {
    process_ = &node;
    process_key_ = key;
    Set(setting);
  }
  void Multiply(const Strings& with) {
    Strings all;
    for (const std::string& before : conditions_) {
      for (const std::string& one : with) all.push_back(before + one + ",");
    }
    conditions_ = std::move(all);
  }

  const bool top_;
  Strings* const lists_;
  bool of_streams_ = false;
  const toml::node* process_ = nullptr;
  std::string process_key_;
  std::string settings_;
  Strings conditions_ = {""};
};

// Adds the rules of one file to `policy`, and its lists of devices to `lists`.
void ReadFile(const std::string& path, Policy* policy, Strings* lists) {
  const toml::table file = toml::parse_file(path);
  const auto add = [&](const Strings& rules, std::uint32_t line) {
    for (const std::string& rule : rules) {
      policy->rules += (policy->rules.empty() ? "" : ";") + rule;
      policy->places.push_back(fmt::format("{}:{}", path, line));
    }
  };
  Compiler top(true, lists);
  std::uint32_t top_line = 0;
  for (const auto& [key, node] : file) {
    if (key.str() == "meet_dir") {
      const auto directory = node.value_exact<std::string>();
      if (!directory || !directory->starts_with('/') ||
          directory->size() > base::kLongestPath) {
        throw Wrong(node, "meet_dir is the absolute path of a directory");
      }
      // The user's file comes first.
      if (policy->meet_dir.empty()) policy->meet_dir = *directory;
      continue;
    }
    if (key.str() != "rule") {
      top.Take(key.str(), node);
      const std::uint32_t line = node.source().begin.line;
      top_line = top_line == 0 ? line : std::min(top_line, line);
      continue;
    }
    const toml::array* list = node.as_array();
    if (list == nullptr || !list->is_array_of_tables()) {
      throw Wrong(node, "rules are written [[rule]]");
    }
    for (const toml::node& one : *list) {
      Compiler rule(false, lists);
      for (const auto& [name, value] : *one.as_table()) {
        rule.Take(name.str(), value);
      }
      add(rule.Finish(one), one.source().begin.line);
    }
  }
  // Settings outside of rules hold where no rule makes them.
  add(top.Finish(file), top_line);
}

std::string UserFile() {
  const char* home = std::getenv("XDG_CONFIG_HOME");
  if (home != nullptr && *home == '/') {
    return std::string(home) + "/rcsock.conf";
  }
  home = std::getenv("HOME");
  return home == nullptr || *home == '\0'
             ? ""
             : std::string(home) + "/.config/rcsock.conf";
}

}  // namespace

Policy ReadPolicy(const std::optional<std::string>& file) {
  Strings paths;
  std::error_code error;
  if (file) {
    paths = {*file};
  } else {
    for (const std::string& path :
         {UserFile(), std::string("/etc/rcsock.conf")}) {
      if (!path.empty() && fs::exists(path, error)) paths.push_back(path);
    }
  }
  Policy policy;
  Strings lists;
  for (const std::string& path : paths) {
    try {
      if (!fs::is_regular_file(path, error)) {
        policy.error =
            fmt::format("{}: {}", path,
                        fs::exists(path, error) ? "it is not a regular file"
                                                : "there is no such file");
        return policy;
      }
      if (::access(path.c_str(), R_OK) != 0) {
        policy.error = fmt::format("{}: {}", path, std::strerror(errno));
        return policy;
      }
      ReadFile(path, &policy, &lists);
    } catch (const toml::parse_error& wrong) {
      policy.error = fmt::format("{}:{}: {}", path, wrong.source().begin.line,
                                 wrong.description());
      return policy;
    } catch (const Wrong& wrong) {
      policy.error = fmt::format("{}:{}: {}", path, wrong.line, wrong.what());
      return policy;
    }
  }
  if (policy.places.size() > static_cast<std::size_t>(base::kMaxRules)) {
    policy.error = fmt::format("{}: more than {} rules, lists multiplied out",
                               paths.front(), base::kMaxRules);
  }
  // A program keeps all lists (base::AddDevices).
  std::size_t bytes = 1;
  for (const std::string& list : lists) {
    bytes += list.size() - std::strlen("devices=") + 1;
  }
  if (policy.error.empty() && bytes > std::size_t{base::kDeviceBytes}) {
    policy.error = fmt::format(
        "{}: the lists of devices have more than {} characters together",
        paths.front(), base::kDeviceBytes);
  }
  return policy;
}

}  // namespace rcsock::tools
