#include "tests/differential/op.h"

#include <sstream>

namespace differential {
namespace {

const char* const kNames[] = {
#define X(name, text) text,
    DIFFERENTIAL_KINDS(X)
#undef X
};
const char* const kWarmths[] = {"cold", "some", "lane", "usual"};

}  // namespace

std::string Text(const Case& one) {
  std::ostringstream text;
  text << "start " << kWarmths[static_cast<int>(one.warmth)] << "\n";
  for (const Op& op : one.ops) {
    text << kNames[static_cast<int>(op.kind)] << " " << +op.end << " "
         << +op.slot << " " << +op.a << " " << +op.b << " " << +op.c << "\n";
  }
  return text.str();
}

bool Parse(const std::string& text, Case* one) {
  *one = Case{};
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name;
    if (!(words >> name) || name[0] == '#') continue;
    if (name == "start") {
      std::string warmth;
      words >> warmth;
      int at = 0;
      while (at < static_cast<int>(Warmth::kCount) && warmth != kWarmths[at]) {
        ++at;
      }
      if (at == static_cast<int>(Warmth::kCount)) return false;
      one->warmth = static_cast<Warmth>(at);
      continue;
    }
    int kind = 0;
    while (kind < static_cast<int>(Kind::kCount) && name != kNames[kind]) {
      ++kind;
    }
    unsigned end, slot, a, b, c;
    if (kind == static_cast<int>(Kind::kCount) ||
        !(words >> end >> slot >> a >> b >> c)) {
      return false;
    }
    one->ops.push_back(
        {static_cast<Kind>(kind), static_cast<std::uint8_t>(end % 2),
         static_cast<std::uint8_t>(slot % kSlots), static_cast<std::uint8_t>(a),
         static_cast<std::uint8_t>(b), static_cast<std::uint8_t>(c)});
  }
  return true;
}

std::size_t Length(std::uint8_t index) {
  constexpr std::size_t kLengths[] = {1, 0, 7, 56, 120, 500, 3000, 9000, 20000};
  return kLengths[index % (sizeof kLengths / sizeof *kLengths)];
}

int Messages(std::uint8_t index) { return 2 + index % 3; }

}  // namespace differential
