#ifndef RCSOCK_TOOLS_RCSOCK_PERF_PRINT_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_PRINT_H_

#include <cstdint>
#include <string>

#include "tools/rcsock/perf/outcome.h"

namespace rcsock::perf {

// Figures for people.
std::string Bits(double bytes_per_second);  // "35.8 Gbit/s"
std::string Bytes(double bytes);            // "64 KiB"
std::string Count(double n);                // "346 k"
std::string Micros(double us);              // "18.6 us", "1.2 ms"
std::string Percent(double part);           // "99.5%"
std::string Number(std::uint64_t n);        // "10,000"
// Return Outcome::Figure() with its unit, and the figure's name.
std::string Figure(const Outcome& outcome);
std::string FigureOf(const Spec& spec, double value);
std::string FigureName(const Spec& spec);
// "stream, 128 KiB messages, 4 connections"
std::string Describe(const Spec& spec);

void PrintHeader(const std::string& host, std::uint16_t port, const Spec& spec);
void PrintInterval(const Spec& spec, const Interval& interval);
void PrintOutcome(const Outcome& outcome);

// What the server prints.
void PrintListening(std::uint16_t port, bool json);
void PrintServed(const std::string& client, const Spec& spec, const Side& side,
                 bool json);
void PrintFailed(const std::string& client, const std::string& line, bool json);

// A line on a terminal that the next line overwrites.  Prints nothing
// elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  void Show(const std::string& line);
  void Clear();

 private:
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_PRINT_H_
