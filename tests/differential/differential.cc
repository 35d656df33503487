// usage: differential AGENT SHIM [--seconds N] [--seed N] [--without STEP]...
//                     [--often STEP]...
//        differential AGENT SHIM --replay FILE...
//
// Makes cases and runs each over plain TCP and under the preload; what its
// calls give and what can be seen between them must be the same.  A case that
// differs is made smaller, printed and kept as a file for --replay.
#include <rapidcheck.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/differential/world.h"
#include "tests/posix/common.h"

namespace differential {

// For RapidCheck.
void showValue(const Case& one, std::ostream& to);
void showValue(const Case& one, std::ostream& to) { to << "\n" << Text(one); }

namespace {

using posix_test::NowMs;

class Comparison {
 public:
  Comparison(const std::string& agent, const std::string& shim)
      : plain_(agent, "", false),
        shim_(agent, shim, false),
        usual_(agent, shim, true) {}

  // Empty if there is no difference.
  std::string Run(const Case& one) {
    std::vector<Moment> expected, got;
    std::string why;
    if (!plain_.Run(one, nullptr, 0, &expected, &why)) {
      plain_.Stop();
      return "over plain TCP: " + why + "\n";
    }
    World& under = one.warmth == Warmth::kUsual ? usual_ : shim_;
    const bool ran = under.Run(one, &expected, patience_ms_, &got, &why);
    std::string text;
    if (!ran || !why.empty()) {
      text = Report(one, expected, got);
      if (!ran) text += "under rcsock: " + why + "\n";
    } else {
      return "";
    }
    plain_.Stop();
    under.Stop();
    // What follows only makes the case smaller.
    patience_ms_ = 1000;
    return text;
  }

 private:
  static std::string Report(const Case& one,
                            const std::vector<Moment>& expected,
                            const std::vector<Moment>& got) {
    std::string text;
    std::istringstream lines(Text(one));
    std::string line;
    for (std::size_t i = 0; i < got.size() && std::getline(lines, line); ++i) {
      const Moment& a = expected[i];
      const Moment& b = got[i];
      text += line + "\n    " + a.call + "\n";
      if (a.call != b.call) text += "  ! " + b.call + "\n";
      for (int end = 0; end < 2; ++end) {
        text += "      " + std::to_string(end) + ":" + a.seen[end] + "\n";
        if (a.seen[end] == b.seen[end]) continue;
        text += "  !   " + std::to_string(end) + ":" + b.seen[end] + "\n";
      }
    }
    return text;
  }

  World plain_;
  World shim_;
  World usual_;
  int patience_ms_ = 4000;
};

// Kinds of steps that are left out, and some that come ten times as often.
struct Wishes {
  std::vector<Kind> without;
  std::vector<Kind> often;
};

bool Has(const std::vector<Kind>& kinds, Kind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

rc::Gen<Op> AnyOp(const Wishes& wishes) {
  std::vector<std::pair<std::size_t, Kind>> kinds = {
      {20, Kind::kSend},        {20, Kind::kRecv},
      {3, Kind::kShutdown},     {2, Kind::kClose},
      {2, Kind::kDup},          {12, Kind::kEpollCtl},
      {14, Kind::kEpollWait},   {3, Kind::kOption},
      {1, Kind::kError},        {2, Kind::kSelect},
      {2, Kind::kFork},         {2, Kind::kSendfile},
      {1, Kind::kSplice},       {1, Kind::kPrint},
      {1, Kind::kUrgent},       {6, Kind::kChat},
      {2, Kind::kBulk},         {2, Kind::kFail},
      {5, Kind::kAsyncRecv},    {3, Kind::kAsyncPoll},
      {2, Kind::kAsyncSelect},  {4, Kind::kAsyncWait},
      {4, Kind::kSignal},       {2, Kind::kOwner},
      {2, Kind::kMore},         {1, Kind::kCork},
      {3, Kind::kConnect},      {4, Kind::kAccept},
      {6, Kind::kSendSeveral},  {6, Kind::kRecvSeveral},
      {2, Kind::kAsyncSeveral}, {2, Kind::kTimed},
      {1, Kind::kSpliceTo},     {1, Kind::kInq},
      {1, Kind::kPeekOffset},   {1, Kind::kDupOnto},
      {1, Kind::kNames},        {3, Kind::kBad},
      {3, Kind::kMasked},       {1, Kind::kUnconnect},
  };
  // As often in a list as it weighs: weightedElement takes no vector.
  std::vector<Kind> list;
  for (const auto& [weight, kind] : kinds) {
    if (Has(wishes.without, kind)) continue;
    list.insert(list.end(), weight * (Has(wishes.often, kind) ? 10 : 1), kind);
  }
  const auto kind = rc::gen::elementOf(list);
  // Mostly the first slot of each: more happens to one connection.
  const auto small = [](int n) {
    return rc::gen::map(rc::gen::inRange(0, n),
                        [](int i) { return static_cast<std::uint8_t>(i); });
  };
  const auto slot =
      rc::gen::weightedElement<std::uint8_t>({{12, std::uint8_t{0}},
                                              {4, std::uint8_t{1}},
                                              {4, std::uint8_t{2}},
                                              {2, std::uint8_t{3}}});
  return rc::gen::noShrink(rc::gen::build<Op>(
      rc::gen::set(&Op::kind, kind), rc::gen::set(&Op::end, small(2)),
      rc::gen::set(&Op::slot, slot), rc::gen::set(&Op::a, small(9)),
      rc::gen::set(&Op::b, small(12)), rc::gen::set(&Op::c, small(24))));
}

rc::Gen<Case> AnyCase(const Wishes& wishes) {
  // A third of them begin on a lane, a third by the usual rules.
  const auto warmth = rc::gen::map(rc::gen::inRange(0, 6), [](int i) {
    return i < 4 ? static_cast<Warmth>(i < 3 ? i : 2) : Warmth::kUsual;
  });
  return rc::gen::build<Case>(
      rc::gen::set(&Case::warmth, rc::gen::noShrink(warmth)),
      rc::gen::set(&Case::ops,
                   rc::gen::container<std::vector<Op>>(AnyOp(wishes))));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int Usage() {
  std::fprintf(stderr,
               "usage: differential AGENT SHIM [--seconds N] [--seed N] "
               "[--without STEP]... [--often STEP]...\n"
               "       differential AGENT SHIM --replay FILE...\n");
  return 2;
}

int Main(int argc, char** argv) {
  if (argc < 3) return Usage();
  Comparison comparison(argv[1], argv[2]);
  std::uint64_t seconds = 15;
  std::uint64_t seed = 1;
  Wishes wishes;
  bool ok = true;
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--replay") {
      while (++i < argc) {
        Case one;
        if (!Parse(ReadFile(argv[i]), &one) || one.ops.empty()) {
          std::fprintf(stderr, "%s: no case\n", argv[i]);
          return 2;
        }
        const std::string difference = comparison.Run(one);
        if (!difference.empty()) {
          ok = false;
          std::printf("%s: differs\n%s", argv[i], difference.c_str());
        }
      }
      std::printf("%s\n", ok ? "all as over TCP" : "FAILED");
      return ok ? 0 : 1;
    }
    if (i + 1 == argc) return Usage();
    if (word == "--without" || word == "--often") {
      Case one;
      if (!Parse(std::string(argv[++i]) + " 0 0 0 0 0", &one)) return Usage();
      (word == "--often" ? wishes.often : wishes.without)
          .push_back(one.ops[0].kind);
      continue;
    }
    const std::uint64_t value = std::strtoull(argv[++i], nullptr, 10);
    if (word == "--seconds") {
      seconds = value;
    } else if (word == "--seed") {
      seed = value;
    } else {
      return Usage();
    }
  }
  // (More than any machine makes in this time; what is left when it is up goes
  // by without a case, in a guest at some 10,000 a second.)
  const std::string parameters =
      "seed=" + std::to_string(seed) +
      " max_success=" + std::to_string(500 * seconds) + " max_size=40";
  ::setenv("RC_PARAMS", parameters.c_str(), 1);
  const std::uint64_t end = NowMs() + 1000 * seconds;
  long cases = 0;
  long steps = 0;
  std::string last;
  std::uint64_t shrink_end = 0;
  ok = rc::check("a program under rcsock sees what it sees over TCP", [&] {
    // Once time is up there is nothing more to find.
    if (last.empty() && NowMs() > end) return;
    const Case one = *AnyCase(wishes);
    if (one.ops.empty() || (shrink_end != 0 && NowMs() > shrink_end)) return;
    ++cases;
    steps += static_cast<long>(one.ops.size());
    const std::string difference = comparison.Run(one);
    if (difference.empty()) return;
    if (shrink_end == 0) shrink_end = NowMs() + 60'000;
    last = difference;
    const char* directory = ::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    const std::string path =
        std::string(directory != nullptr ? directory : "/tmp") +
        "/differential." + std::to_string(seed) + ".case";
    std::ofstream(path) << Text(one);
    RC_FAIL("kept in " + path);
  });
  std::printf("%ld cases, %ld steps\n", cases, steps);
  if (!ok) std::printf("%s", last.c_str());
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace differential

int main(int argc, char** argv) { return differential::Main(argc, argv); }
