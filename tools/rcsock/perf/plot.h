#ifndef RCSOCK_TOOLS_RCSOCK_PERF_PLOT_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_PLOT_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace rcsock::perf {

// One line of a plot.  `style` is its class in the page's style sheet, and
// chooses the marker.
struct Series {
  std::string name;
  std::string style;
  std::vector<std::pair<double, double>> points;
  // The least and the most of the samples of each point; empty: not shown.
  std::vector<std::pair<double, double>> spread;
  bool markers = true;
};

struct Axis {
  std::string label;
  bool log = false;
  // The axis goes from the first tick to the last.
  std::vector<double> ticks;
  std::function<std::string(double)> text;
  // The text on the axis, where there is little room.  Null: `text` writes it.
  std::function<std::string(double)> tick = nullptr;
};

// Return ticks that hold all values of the axis: 1-2-5 steps from zero, or
// powers of ten.
std::vector<double> LinearTicks(double max);
std::vector<double> DecadeTicks(double min, double max);

// Returns an SVG for the middle of a page of HTML.  Its text is readable at the
// width of a phone.  `title` is for readers who cannot see it.
std::string Plot(const std::string& title, const Axis& x, const Axis& y,
                 const std::vector<Series>& series);

// Returns a series' marker alone, for a legend.
std::string LegendKey(const std::string& style);

std::string Escaped(const std::string& text);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_PLOT_H_
