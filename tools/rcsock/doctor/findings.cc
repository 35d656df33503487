#include "tools/rcsock/doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

namespace rcsock::tools {
namespace {

struct Look {
  const char* word;
  const char* key;
  const char* colour;
};

Look LookOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return {"ok", "good", "\033[32m"};
    case Verdict::kNote:
      return {"note", "note", "\033[36m"};
    case Verdict::kWarn:
      return {"warn", "warn", "\033[33m"};
    case Verdict::kBad:
      return {"BAD", "bad", "\033[31m"};
  }
  return {"?", "?", ""};
}

}  // namespace

void Findings::Add(std::string about, Verdict verdict, std::string words,
                   std::string mend) {
  all_.push_back(
      {std::move(about), verdict, std::move(words), std::move(mend)});
  if (!text_) return;
  const Finding& last = all_.back();
  const Look look = LookOf(verdict);
  std::cout << fmt::format("{}{:<5}{} {:<16} {}\n", colour_ ? look.colour : "",
                           look.word, colour_ ? "\033[0m" : "", last.about,
                           last.words);
  if (!last.mend.empty()) {
    std::cout << fmt::format("{:<23}mend: {}\n", "", last.mend);
  }
  std::cout << std::flush;
}

std::string Findings::Json() const {
  nlohmann::ordered_json json;
  json["healthy"] = !AnyBad();
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& one : all_) {
    nlohmann::ordered_json finding = {{"about", one.about},
                                      {"verdict", LookOf(one.verdict).key},
                                      {"words", one.words}};
    if (!one.mend.empty()) finding["mend"] = one.mend;
    json["findings"].push_back(std::move(finding));
  }
  return json.dump(2, ' ', false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

bool Findings::AnyBad() const {
  return std::any_of(all_.begin(), all_.end(), [](const Finding& one) {
    return one.verdict == Verdict::kBad;
  });
}

}  // namespace rcsock::tools
