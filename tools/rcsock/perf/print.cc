#include "tools/rcsock/perf/print.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace rcsock::perf {
namespace {

// Three digits and a prefix.
std::string Scaled(double value, double step,
                   const std::array<const char*, 5>& prefixes,
                   const char* unit) {
  std::size_t i = 0;
  while (value >= step * 0.9995 && i + 1 < prefixes.size()) {
    value /= step;
    ++i;
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}{}", value, digits, prefixes[i], unit);
}

void Line(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

std::string Plural(std::uint64_t n, const char* word) {
  return fmt::format("{} {}{}", Number(n), word, n == 1 ? "" : "s");
}

std::string TopCalls(const Calls& calls, std::uint64_t messages) {
  std::vector<std::pair<std::uint64_t, std::string>> sorted;
  for (const auto& [name, n] : calls) {
    if (name != "clock_gettime") sorted.emplace_back(n, name);
  }
  std::sort(sorted.rbegin(), sorted.rend());
  std::string text;
  for (std::size_t i = 0; i < sorted.size() && i < 3; ++i) {
    const double each =
        static_cast<double>(sorted[i].first) /
        static_cast<double>(std::max<std::uint64_t>(1, messages));
    if (each < 0.005) break;
    text += fmt::format("{}{} {:.2f}", i == 0 ? " (" : ", ", sorted[i].second,
                        each);
  }
  return text.empty() ? "" : text + ")";
}

void PrintQuantiles(const char* name, const Histogram& histogram) {
  if (histogram.count() == 0) return;
  const auto us = [&](double q) {
    return Micros(static_cast<double>(histogram.Percentile(q)) / 1000);
  };
  Line(fmt::format("{:<14} p50 {}, p90 {}, p99 {}, p99.9 {}, p99.99 {}", name,
                   us(0.5), us(0.9), us(0.99), us(0.999), us(0.9999)));
  Line(fmt::format("{:<14} min {}, mean {}, max {} of {}", "",
                   Micros(static_cast<double>(histogram.min()) / 1000),
                   Micros(histogram.Mean() / 1000),
                   Micros(static_cast<double>(histogram.max()) / 1000),
                   Number(histogram.count())));
}

std::string CpuOf(const Outcome& outcome, const Side& side) {
  const double part = side.seconds > 0 ? side.Cpu() / side.seconds : 0;
  return fmt::format("{} a message ({:.0f}% of a CPU)",
                     Micros(outcome.CpuPerMessage(side)), part * 100);
}

void PrintReceived(const Side& side, const char* by) {
  const double bytes = static_cast<double>(side.rx_bytes);
  Line(fmt::format("{:<14} {} in {:.2f} s: {} received by the {}", "throughput",
                   Bytes(bytes), side.rx_seconds,
                   Bits(side.rx_seconds > 0 ? bytes / side.rx_seconds : 0),
                   by));
}

void PrintThroughput(const Outcome& outcome) {
  const Direction direction = outcome.spec.direction;
  if (direction != Direction::kReverse) {
    PrintReceived(outcome.server, "server");
  }
  if (direction != Direction::kForward) {
    PrintReceived(outcome.client, "client");
  }
}

// Prints round trips or connections.
void PrintRate(const Outcome& outcome) {
  const bool brief = outcome.spec.mode == Mode::kShort;
  const Side& client = outcome.client;
  Line(fmt::format(
      "{:<14} {} in {:.2f} s: {}/s", brief ? "connections" : "round trips",
      Number(client.messages), client.seconds, Count(outcome.Rate())));
  PrintQuantiles(brief ? "whole exchange" : "latency", client.latency);
  if (outcome.spec.rate > 0) {
    Line(
        fmt::format("{:<14} {} were asked for; each counts from when it was "
                    "due",
                    "", Count(outcome.spec.rate) + "/s"));
  }
  if (brief || outcome.spec.connections > 1) {
    PrintQuantiles("connect", client.connect);
  }
}

// Returns how much was on the lane, and why so much was not.  "": not known.
std::string ShareOf(const Outcome& outcome) {
  if (!outcome.ShareKnown()) return "";
  std::string why = outcome.WhyTcp();
  if (outcome.spec.mode == Mode::kShort) {
    // Each reason with the number of connections that had it.
    why.clear();
    for (const auto& [reason, n] : outcome.reasons) {
      why += fmt::format("{}{} of {} {}", why.empty() ? "" : ", ", Number(n),
                         Number(outcome.client.messages), reason);
    }
  }
  const double share = outcome.Share();
  return fmt::format(", {} of the bytes{}", Percent(share),
                     share < 0.01 ? " on a lane" : "") +
         (share < kGoodShare && !why.empty() ? " (" + why + ")" : "");
}

}  // namespace

std::string Bits(double bytes_per_second) {
  return Scaled(bytes_per_second * 8, 1000, {"", "k", "M", "G", "T"}, "bit/s");
}

std::string Bytes(double bytes) {
  std::size_t i = 0;
  constexpr std::array kPrefixes = {"B", "KiB", "MiB", "GiB", "TiB"};
  while (bytes >= 1024 && i + 1 < kPrefixes.size()) {
    bytes /= 1024;
    ++i;
  }
  if (bytes == std::floor(bytes)) {
    return fmt::format("{:.0f} {}", bytes, kPrefixes[i]);
  }
  const int digits = bytes < 9.995 ? 2 : bytes < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", bytes, digits, kPrefixes[i]);
}

std::string Count(double n) {
  return Scaled(n, 1000, {"", "k", "M", "G", "T"}, "");
}

std::string Micros(double us) {
  if (us < 1) return fmt::format("{:.0f} ns", us * 1000);
  if (us < 1000) return Scaled(us, 1e9, {"", "", "", "", ""}, "us");
  if (us < 1e6) return Scaled(us / 1000, 1e9, {"", "", "", "", ""}, "ms");
  return Scaled(us / 1e6, 1e9, {"", "", "", "", ""}, "s");
}

std::string Percent(double part) {
  // Never rounded up to 100%.
  if (part < 1 && part > 0.9995) return "99.9%";
  return fmt::format("{:.1f}%", part * 100);
}

std::string Number(std::uint64_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t i = digits.size(); i > 3; i -= 3)
    digits.insert(i - 3, 1, ',');
  return digits;
}

std::string FigureOf(const Spec& spec, double value) {
  if (spec.mode == Mode::kStream) return Bits(value);
  if (spec.mode == Mode::kMessages && spec.connections == spec.active) {
    return Micros(value);
  }
  return Count(value) + "/s";
}

std::string Figure(const Outcome& outcome) {
  return FigureOf(outcome.spec, outcome.Figure());
}

std::string FigureName(const Spec& spec) {
  if (spec.mode == Mode::kStream) return "throughput";
  if (spec.mode == Mode::kShort) return "connections";
  return spec.connections == spec.active ? "round trip" : "round trips";
}

std::string Describe(const Spec& spec) {
  const std::string size = Bytes(static_cast<double>(spec.size));
  switch (spec.mode) {
    case Mode::kStream:
      return fmt::format(
          "stream {}, messages of {}, {}{}",
          spec.direction == Direction::kForward   ? "to the server"
          : spec.direction == Direction::kReverse ? "from the server"
                                                  : "both ways",
          size, Plural(spec.connections, "connection"),
          spec.gpu < 0 ? "" : fmt::format(", memory of GPU {}", spec.gpu));
    case Mode::kMessages:
      if (spec.rate > 0) {
        return fmt::format("round trips of {}, {}, {}/s at random times", size,
                           Plural(spec.connections, "connection"),
                           Number(static_cast<std::uint64_t>(spec.rate)));
      }
      return fmt::format("round trips of {}, {}, {} under way", size,
                         Plural(spec.connections, "connection"),
                         Number(spec.active));
    case Mode::kShort:
      return fmt::format(
          "short connections, a round trip of {} each, {} at "
          "a time",
          size, Number(spec.connections));
  }
  return "";
}

void PrintHeader(const std::string& host, std::uint16_t port,
                 const Spec& spec) {
  Line(fmt::format("{} port {}, {}: {}", host, port, Name(spec.transport),
                   Describe(spec)));
}

void PrintInterval(const Spec& spec, const Interval& interval) {
  const double seconds = interval.to - interval.from;
  if (seconds <= 0) return;
  std::string text =
      fmt::format("{:7.2f} - {:7.2f} s", interval.from, interval.to);
  const auto rate = [&](std::uint64_t n) {
    return static_cast<double>(n) / seconds;
  };
  if (spec.mode == Mode::kStream) {
    if (spec.direction != Direction::kReverse) {
      text += fmt::format("   sent {:>13}", Bits(rate(interval.tx_bytes)));
    }
    if (spec.direction != Direction::kForward) {
      text += fmt::format("   received {:>13}", Bits(rate(interval.rx_bytes)));
    }
  } else {
    text += fmt::format("   {:>8}/s   {:>13}", Count(rate(interval.messages)),
                        Bits(rate(interval.tx_bytes + interval.rx_bytes)));
  }
  Line(text);
}

void PrintOutcome(const Outcome& outcome) {
  const Spec& spec = outcome.spec;
  if (spec.mode == Mode::kStream) {
    PrintThroughput(outcome);
  } else {
    PrintRate(outcome);
  }
  Line(fmt::format("{:<14} client {}, server {}", "CPU",
                   CpuOf(outcome, outcome.client),
                   CpuOf(outcome, outcome.server)));
  if (outcome.client_calls && outcome.server_calls) {
    const std::uint64_t n = outcome.Messages();
    Line(fmt::format("{:<14} client {:.2f} a message{}, server {:.2f}{}",
                     "system calls", CallsPerMessage(*outcome.client_calls, n),
                     TopCalls(*outcome.client_calls, n),
                     CallsPerMessage(*outcome.server_calls, n),
                     TopCalls(*outcome.server_calls, n)));
  }
  if (spec.transport == Transport::kVerbs) return;
  if (!UnderRcsock(spec.transport)) {
    Line(fmt::format("{:<14} the kernel's TCP, without rcsock", "transport"));
    return;
  }
  Line(fmt::format("{:<14} {}{}", "lane", outcome.Lane(), ShareOf(outcome)));
}

void PrintListening(std::uint16_t port, bool json) {
  if (json) {
    Line(nlohmann::json{{"listening", port}}.dump());
  } else {
    Line(fmt::format("rcsock perf listens on port {}", port));
  }
}

void PrintServed(const std::string& client, const Spec& spec, const Side& side,
                 bool json) {
  if (json) {
    Line(nlohmann::json{
        {"client", client}, {"spec", ToJson(spec)}, {"server", ToJson(side)}}
             .dump());
    return;
  }
  Line(fmt::format("{}: {}: {}: {} in {:.2f} s", client, Name(spec.transport),
                   Describe(spec), Bytes(static_cast<double>(side.Moved())),
                   side.seconds));
}

void PrintFailed(const std::string& client, const std::string& line,
                 bool json) {
  if (json) {
    Line(nlohmann::json{{"client", client}, {"error", line}}.dump());
  } else {
    Line(fmt::format("{}: {}", client, line));
  }
}

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { Clear(); }

void Progress::Show(const std::string& line) {
  if (!terminal_) return;
  fmt::print(stderr, "\r\x1b[K{}", line);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::Clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace rcsock::perf
