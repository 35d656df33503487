// What is no difference, though it is not the same.
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "tests/differential/world.h"

namespace differential {
namespace {

bool WaitsOnSet(const Op& op) {
  return op.kind == Kind::kEpollWait ||
         (op.kind == Kind::kMasked && op.a % 4 >= 2);
}

// The descriptors that are in both, and nothing of threads.
bool SameSlots(const std::string& one, const std::string& other) {
  const auto parse = [](const std::string& seen) {
    std::map<std::string, std::string> slots;
    std::istringstream parts(seen.substr(0, seen.find(" the thread")));
    std::string part;
    while (std::getline(parts, part, ';')) {
      const std::size_t colon = part.find(':');
      if (colon != std::string::npos) slots[part.substr(0, colon)] = part;
    }
    return slots;
  };
  const auto others = parse(other);
  for (const auto& [name, what] : parse(one)) {
    const auto found = others.find(name);
    if (found != others.end() && found->second != what) return false;
  }
  return true;
}

}  // namespace

// TCP may make an edge twice, the second one late (a FIN that is acknowledged).
// So one that this end has been told of, and since which it sees no change, may
// be missing.
std::string World::Told(const Case& one, const std::vector<Moment>& before) {
  if (before.empty() || before.size() > one.ops.size()) return "";
  const int end = one.ops[before.size() - 1].end;
  const std::string& now = before.back().seen[end];
  const auto threads = [](const std::string& seen) {
    const std::size_t at = seen.find(" the thread");
    return at == std::string::npos ? "" : seen.substr(at);
  };
  std::string told = threads(now);
  for (std::size_t i = before.size() - 1; i > 0; --i) {
    const Op& op = one.ops[i - 1];
    if (!SameSlots(before[i].seen[end], now)) break;
    told += threads(before[i].seen[end]);
    if (WaitsOnSet(op) && op.end == end) {
      told += " " + before[i].call;
    }
  }
  return told;
}

namespace {

// "1e:5" -> {"1e", 5}.
std::map<std::string, unsigned> Events(const std::string& text) {
  std::map<std::string, unsigned> events;
  std::istringstream words(text);
  std::string word;
  words >> word;  // how many
  while (words >> word) {
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos) continue;
    events[word.substr(0, colon)] = static_cast<unsigned>(
        std::strtoul(word.c_str() + colon + 1, nullptr, 16));
  }
  return events;
}

}  // namespace

bool Allowed(const Op& op, const std::string& expected, const std::string& got,
             const std::string& told) {
  if (expected == got) return true;
  if (!WaitsOnSet(op)) return false;
  const auto before = Events(told);
  const auto wanted = Events(expected);
  const auto seen = Events(got);
  for (const auto& [name, events] : wanted) {
    const auto found = seen.find(name);
    if (found == seen.end() && name.back() == 'e' && before.count(name) != 0) {
      continue;
    }
    if (found == seen.end() || (found->second & events) != events) return false;
    if (name.back() != 'e' && found->second != events) return false;
  }
  for (const auto& [name, events] : seen) {
    if (name.back() != 'e' && wanted.count(name) == 0) return false;
  }
  if (wanted.empty() && seen.empty()) return false;
  // (Of a signal that waits it is told instead.)
  if (op.kind == Kind::kMasked && got.rfind("EINTR", 0) == 0) return true;
  return !got.empty() && got[0] >= '0' && got[0] <= '9';
}

bool OnlyEdges(const std::string& got) {
  const auto seen = Events(got);
  for (const auto& [name, events] : seen) {
    if (name.back() != 'e') return false;
  }
  return !seen.empty();
}

}  // namespace differential
