#include "tests/stream/explorer.h"

#include <algorithm>
#include <deque>

namespace rcsock::stream {
namespace {

struct Print {
  std::uint64_t a = 0, b = 0;
};

std::uint64_t Mix(std::uint64_t x, std::uint64_t y) {
  __uint128_t m = static_cast<__uint128_t>(x) * y;
  return static_cast<std::uint64_t>(m) ^ static_cast<std::uint64_t>(m >> 64);
}

Print Fingerprint(const std::string& s) {
  std::uint64_t a = 0x9e3779b97f4a7c15u ^ s.size();
  std::uint64_t b = 0xc2b2ae3d27d4eb4fu + s.size();
  for (std::size_t at = 0; at < s.size(); at += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, s.data() + at, std::min<std::size_t>(8, s.size() - at));
    a = Mix(a ^ w, 0xa0761d6478bd642fu) + 0x632be59bd9b4e019u;
    b = Mix(b + w * 0xe7037ed1a0b428dbu, 0x8ebc6af09c88c6e3u) ^ (b >> 29);
  }
  a = Mix(a, 0x589965cc75374cc3u);
  b = Mix(b ^ a, 0x1d8e4e27c47d124fu);
  if (a == 0 && b == 0) a = 1;
  return {a, b};
}

class Seen {
 public:
  Seen() : table_(1 << 16) {}
  bool Insert(Print p) {
    if (count_ * 2 >= table_.size()) Grow();
    if (!Put(&table_, p)) return false;
    ++count_;
    return true;
  }

 private:
  static bool Put(std::vector<Print>* table, Print p) {
    std::size_t mask = table->size() - 1;
    for (std::size_t i = p.a & mask;; i = (i + 1) & mask) {
      Print& slot = (*table)[i];
      if (slot.a == p.a && slot.b == p.b) return false;
      if (slot.a == 0 && slot.b == 0) {
        slot = p;
        return true;
      }
    }
  }
  void Grow() {
    std::vector<Print> bigger(table_.size() * 2);
    for (Print p : table_) {
      if (p.a != 0 || p.b != 0) Put(&bigger, p);
    }
    table_.swap(bigger);
  }
  std::vector<Print> table_;
  std::size_t count_ = 0;
};

struct Node {
  std::uint32_t parent;
  std::uint8_t act;
  std::uint8_t end;
};

std::string Show(const World& w) {
  static const char* const kTx[] = {"RAW", "PROP", "COMM",
                                    "STG", "LANE", "DOWN"};
  static const char* const kRx[] = {"raw", "arm", "armF", "frames"};
  std::string text;
  for (int i = 0; i < 2; ++i) {
    const Stream& s = w.stream[i];
    char line[160];
    std::snprintf(line, sizeof line, "%c[%s/%s wrote %d read %d%s%s%s] ",
                  "CS"[i],
                  w.app[i].alive ? kTx[static_cast<int>(s.tx())] : "dead",
                  kRx[static_cast<int>(s.rx())], w.app[i].written,
                  w.app[i].read, w.app[i].shut ? " shut" : "",
                  StreamTestAccess::KernelShut(s) ? " kshut" : "",
                  w.app[i].saw_end ? " end" : "");
    text += line;
  }
  return text;
}

void Trace(const Bounds& bounds, const std::vector<Node>& nodes,
           std::uint32_t last, const char* why) {
  std::vector<Node> path;
  for (std::uint32_t n = last; n != 0; n = nodes[n].parent) {
    path.push_back(nodes[n]);
  }
  std::reverse(path.begin(), path.end());
  World world(&bounds);
  int step = 0;
  for (const Node& node : path) {
    world.Do(static_cast<Act>(node.act), node.end);
    std::printf("  %2d %c: %-26s %s\n", ++step, "CS"[node.end],
                Name(static_cast<Act>(node.act)), Show(world).c_str());
  }
  std::printf("  => %s\n", why);
}

}  // namespace

Result Explore(const Bounds& bounds, bool print) {
  Result result;
  Seen seen;
  std::vector<Node> nodes;
  std::deque<std::pair<World, std::uint32_t>> frontier;
  nodes.push_back({0, 0, 0});
  frontier.emplace_back(World(&bounds), 0u);
  std::string bytes;
  frontier.front().first.Serialise(&bytes);
  seen.Insert(Fingerprint(bytes));
  auto fail = [&](std::uint32_t node, const char* why) {
    result.error = why;
    result.states = nodes.size();
    if (print) Trace(bounds, nodes, node, why);
  };
  while (!frontier.empty()) {
    const World& world = frontier.front().first;
    const std::uint32_t id = frontier.front().second;
    bool moves = false;
    const std::size_t before = nodes.size();
    if (world.stream[0].FastTx() && world.stream[1].FastTx()) ++result.promoted;
    for (int act = 0; act < static_cast<int>(Act::kCount); ++act) {
      for (int end = 0; end < 2; ++end) {
        if (!world.app[end].alive) continue;
        World next(world);
        if (!next.Do(static_cast<Act>(act), end)) continue;
        ++result.transitions;
        next.Serialise(&bytes);
        Print p = Fingerprint(bytes);
        // A step that changes nothing is none.
        if (((act >= static_cast<int>(Act::kRead) &&
              act <= static_cast<int>(Act::kCredit)) ||
             act == static_cast<int>(Act::kHear)) &&
            (act != static_cast<int>(Act::kLaneUp) || !world.up[end])) {
          std::string self;
          world.Serialise(&self);
          if (self != bytes) moves = true;
        }
        if (!seen.Insert(p) && next.error == nullptr) continue;
        nodes.push_back({id, static_cast<std::uint8_t>(act),
                         static_cast<std::uint8_t>(end)});
        auto fresh = static_cast<std::uint32_t>(nodes.size() - 1);
        if (next.error != nullptr) {
          fail(fresh, next.error);
          return result;
        }
        frontier.emplace_back(next, fresh);
      }
    }
    (void)before;
    if (!moves) {
      ++result.quiescent;
      if (const char* why = world.Good()) {
        fail(id, why);
        return result;
      }
    }
    frontier.pop_front();
    if (nodes.size() > bounds.max_states) {
      result.states = nodes.size();
      return result;
    }
  }
  result.states = nodes.size();
  result.complete = true;
  return result;
}

}  // namespace rcsock::stream
