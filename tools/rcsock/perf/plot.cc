#include "tools/rcsock/perf/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace rcsock::perf {
namespace {

// As wide and high as a slide; on a phone the style sheet makes the text
// larger.
constexpr double kWidth = 720;
constexpr double kHeight = 380;
constexpr double kLeft = 84;
constexpr double kRight = 20;
constexpr double kTop = 34;
constexpr double kBottom = 62;

double Place(const Axis& axis, double value, double from, double to) {
  double low = axis.ticks.front();
  double high = axis.ticks.back();
  if (axis.log) {
    low = std::log(low);
    high = std::log(high);
    value = std::log(value);
  }
  const double part = high > low ? (value - low) / (high - low) : 0.5;
  return from + (to - from) * std::clamp(part, 0.0, 1.0);
}

std::string TickText(const Axis& axis, double value) {
  return axis.tick ? axis.tick(value) : axis.text(value);
}

double X(const Axis& axis, double value) {
  return Place(axis, value, kLeft, kWidth - kRight);
}

double Y(const Axis& axis, double value) {
  return Place(axis, value, kHeight - kBottom, kTop);
}

// Shape, not only colour, tells the series apart.
std::string Marker(const std::string& style, double x, double y,
                   const std::string& title) {
  const std::string inner =
      title.empty() ? "" : "<title>" + Escaped(title) + "</title>";
  const auto path = [&](const std::string& d) {
    return fmt::format("<path class=\"dot {}\" d=\"{}\">{}</path>", style, d,
                       inner);
  };
  if (style == "shm") {
    return path(fmt::format("M{:.1f} {:.1f}h10v10h-10z", x - 5, y - 5));
  }
  if (style == "rdma") {
    return path(fmt::format("M{:.1f} {:.1f}l6.5 11h-13z", x, y - 7));
  }
  if (style == "verbs") {
    return path(
        fmt::format("M{:.1f} {:.1f}l6.5 6.5l-6.5 6.5l-6.5 -6.5z", x, y - 6.5));
  }
  return fmt::format(
      "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5.4\">{}"
      "</circle>",
      style, x, y, inner);
}

}  // namespace

std::string Escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::vector<double> LinearTicks(double max) {
  if (!(max > 0)) return {0, 1};
  const double raw = max / 4;
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  double step = decade * 10;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (decade * factor >= raw) {
      step = decade * factor;
      break;
    }
  }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < max; ++i) {
    ticks.push_back(step * i);
  }
  return ticks;
}

std::vector<double> DecadeTicks(double min, double max) {
  if (!(min > 0) || !(max >= min)) return {1, 10};
  std::vector<double> ticks;
  const double low = std::floor(std::log10(min) + 1e-9);
  const double high = std::max(low + 1, std::ceil(std::log10(max) - 1e-9));
  for (double decade = low; decade <= high; ++decade) {
    ticks.push_back(std::pow(10, decade));
  }
  return ticks;
}

std::string Plot(const std::string& title, const Axis& x, const Axis& y,
                 const std::vector<Series>& series) {
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth,
      kHeight, Escaped(title));
  for (const double tick : y.ticks) {
    const double at = Y(y, tick);
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>"
        "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}"
        "</text>\n",
        kLeft, at, kWidth - kRight, kLeft - 8, at + 5,
        Escaped(TickText(y, tick)));
  }
  // As many labels as there is room for.
  const std::size_t every = (x.ticks.size() + 4) / 5;
  for (std::size_t i = 0; i < x.ticks.size(); ++i) {
    const double at = X(x, x.ticks[i]);
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {}v6\"/>", at,
                       kHeight - kBottom);
    if (i % every != 0) continue;
    svg += fmt::format(
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}"
        "</text>\n",
        at, kHeight - kBottom + 26,
        at > kWidth - kRight - 24 ? "end" : "middle",
        Escaped(TickText(x, x.ticks[i])));
  }
  svg += fmt::format(
      "<text class=\"axis\" x=\"{}\" y=\"20\">{}</text>"
      "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
      4, Escaped(y.label), kWidth - kRight, kHeight - 8, Escaped(x.label));
  for (const Series& line : series) {
    std::string d;
    for (const auto& [px, py] : line.points) {
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", X(x, px),
                       Y(y, py));
    }
    if (d.empty()) continue;
    svg += fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", line.style, d);
    for (std::size_t i = 0; i < line.spread.size(); ++i) {
      svg +=
          fmt::format("<path class=\"spread {}\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>",
                      line.style, X(x, line.points[i].first),
                      Y(y, line.spread[i].first), Y(y, line.spread[i].second));
    }
    if (!line.markers) continue;
    for (const auto& [px, py] : line.points) {
      svg +=
          Marker(line.style, X(x, px), Y(y, py),
                 fmt::format("{}, {}: {}", line.name, x.text(px), y.text(py)));
    }
    svg += "\n";
  }
  return svg + "</svg>\n";
}

std::string LegendKey(const std::string& style) {
  return fmt::format(
      "<svg class=\"key\" viewBox=\"0 0 36 18\" aria-hidden=\"true\">"
      "<path class=\"line {}\" d=\"M1 9H35\"/>{}</svg>",
      style, Marker(style, 18, 9, ""));
}

}  // namespace rcsock::perf
