// SPDX-License-Identifier: Apache-2.0
#include "train/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>
#include <utility>

namespace sherd {
namespace {

constexpr double kPlotWidth = 560;
constexpr double kHeight = 200;
constexpr double kLeft = 64;  // for the numbers
constexpr double kBelow = 24;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string brief(double value) {
  std::array<char, 32> text{};
  const double size = std::abs(value);
  // At most eight characters, which is what fits beside a plot.
  const bool plain = value == 0 || (size >= 1e-3 && size < 1e8);
  const char* how = size >= 1e3 ? "%.0f" : "%.4g";
  std::snprintf(text.data(), text.size(), plain ? how : "%.2e", value);
  return text.data();
}

struct Point {
  double step = 0;
  double value = 0;
};

struct Line {
  std::string name;
  std::string colour;
  std::vector<Point> points;
};

/// Lines over the same steps, from the least value to the largest.
class Plot {
 public:
  Plot(std::string title, std::vector<Line> lines)
      : title_(std::move(title)), lines_(std::move(lines)) {
    for (const auto& line : lines_) {
      for (const auto& [step, value] : line.points) {
        if (!std::isfinite(value)) continue;
        least_ = std::min(least_, value);
        most_ = std::max(most_, value);
        first_ = std::min(first_, step);
        last_ = std::max(last_, step);
      }
    }
    if (least_ > most_) least_ = most_ = first_ = last_ = 0;
    if (least_ == most_) {
      most_ += std::max(1e-9, std::abs(most_) * 0.05);
      least_ -= std::max(1e-9, std::abs(least_) * 0.05);
    }
  }

  std::string html() const {
    std::ostringstream out;
    out << "<figure><figcaption>" << escaped(title_) << legend()
        << "</figcaption><svg viewBox=\"0 0 " << kPlotWidth << ' ' << kHeight
        << "\" role=\"img\" aria-label=\"" << escaped(title_) << "\">";
    for (int i = 0; i <= 4; ++i) {
      const double value = least_ + (most_ - least_) * i / 4;
      const double y = height_of(value);
      out << "<line class=\"grid\" x1=\"" << kLeft << "\" x2=\"" << kPlotWidth << "\" y1=\"" << y
          << "\" y2=\"" << y << "\"/><text x=\"" << kLeft - 6 << "\" y=\"" << y + 4
          << "\" text-anchor=\"end\">" << brief(value) << "</text>";
    }
    double written = NAN;
    for (int i = 0; i <= 4; ++i) {
      const double step = std::round(first_ + (last_ - first_) * i / 4);
      if (step == written) continue;  // of a short run
      written = step;
      out << "<text x=\"" << place_of(step) << "\" y=\"" << kHeight - 4 << "\" text-anchor=\""
          << (step == last_ && last_ > first_ ? "end" : "middle") << "\">"
          << static_cast<int64_t>(step) << "</text>";
    }
    for (const auto& line : lines_) out << drawn(line);
    out << "</svg></figure>\n";
    return out.str();
  }

 private:
  std::string drawn(const Line& line) const {
    std::vector<std::pair<double, double>> points;
    for (const auto& [step, value] : line.points) {
      if (std::isfinite(value)) points.emplace_back(place_of(step), height_of(value));
    }
    std::ostringstream out;
    out << "<polyline stroke=\"" << line.colour << "\" points=\"";
    for (const auto& [x, y] : points) out << x << ',' << y << ' ';
    out << "\"/>";
    if (points.size() == 1) {  // of which a line shows nothing
      const auto& [x, y] = points.front();
      out << "<circle r=\"3\" fill=\"" << line.colour << "\" cx=\"" << x << "\" cy=\"" << y
          << "\"/>";
    }
    return out.str();
  }
  std::string legend() const {
    std::string text;
    for (const auto& line : lines_) {
      if (lines_.size() == 1) break;
      text += " <span style=\"color:" + line.colour + "\">" + escaped(line.name) + "</span>";
    }
    return text;
  }
  double place_of(double step) const {
    const double width = kPlotWidth - kLeft - 8;
    return kLeft + (last_ > first_ ? (step - first_) / (last_ - first_) * width : width / 2);
  }
  double height_of(double value) const {
    return 8 + (1 - (value - least_) / (most_ - least_)) * (kHeight - kBelow - 16);
  }

  std::string title_;
  std::vector<Line> lines_;
  double least_ = INFINITY;
  double most_ = -INFINITY;
  double first_ = INFINITY;
  double last_ = -INFINITY;
};

using MetricOf = std::function<double(const StepMetrics&)>;

Line line_of(
    const char* name,
    const char* colour,
    const std::vector<StepMetrics>& steps,
    const MetricOf& value) {
  Line line{name, colour, {}};
  for (const auto& step : steps)
    line.points.push_back({static_cast<double>(step.step), value(step)});
  return line;
}

std::string plots(const std::vector<StepMetrics>& steps) {
  constexpr const char* kBlue = "#1f6fb2";
  constexpr const char* kOrange = "#c2571a";
  std::vector<Line> losses{
      line_of("training", kBlue, steps, [](const StepMetrics& one) { return one.loss; })};
  Line validation{"validation", kOrange, {}};
  for (const auto& step : steps) {
    if (step.val_loss)
      validation.points.push_back({static_cast<double>(step.step), *step.val_loss});
  }
  if (!validation.points.empty()) losses.push_back(std::move(validation));
  const auto single = [&](const char* title, const MetricOf& value) {
    return Plot(title, {line_of(title, kBlue, steps, value)}).html();
  };
  constexpr double kMiB = 1 << 20;
  return Plot("Loss", std::move(losses)).html() +
         single("Gradient norm", [](const StepMetrics& one) { return one.grad_norm; }) +
         single("Tokens per second", [](const StepMetrics& one) { return one.tokens_per_second; }) +
         single("Learning rate", [](const StepMetrics& one) { return one.lr; }) +
         Plot(
             "Memory on the fullest rank, MiB",
             {line_of(
                  "planned", kOrange, steps,
                  [&](const StepMetrics& one) {
                    return static_cast<double>(one.planned_bytes) / kMiB;
                  }),
              line_of(
                  "used", kBlue, steps,
                  [&](const StepMetrics& one) {
                    return static_cast<double>(one.peak_bytes) / kMiB;
                  })})
             .html();
}

}  // namespace

std::string report_html(
    const Configuration& configuration,
    int64_t ranks,
    const std::vector<StepMetrics>& steps,
    const Ledger& ledger) {
  double seconds = 0;
  for (const auto& step : steps) seconds += step.step_seconds;
  std::ostringstream out;
  out << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sherd: "
      << escaped(configuration.train.out)
      << "</title><style>"
         "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;"
         "color:#222;background:#fff}h1{font-size:1.5rem;overflow-wrap:anywhere}figure{display:"
         "inline-block;margin:0 1rem "
         "1rem 0;"
         "width:560px;max-width:100%}figcaption{font-weight:600}svg{width:100%}svg "
         "text{font-size:11px;"
         "fill:#555}polyline{fill:none;stroke-width:1.5}polyline~polyline{stroke-dasharray:6 "
         "4}.grid{stroke:#e3e3e3}pre{background:#"
         "f6f6f6;"
         "padding:1rem;overflow:auto}</style></head><body>\n<h1>"
      << escaped(configuration.train.out) << "</h1>\n<p id=\"summary\">" << steps.size()
      << (steps.size() == 1 ? " step" : " steps") << " of a " << escaped(configuration.model.kind)
      << " on " << ranks << (ranks == 1 ? " rank" : " ranks") << " in " << duration_text(seconds);
  if (!steps.empty()) {
    out << ": loss " << brief(steps.front().loss) << " at the start, " << brief(steps.back().loss)
        << " at the end";
  }
  out << ".</p>\n"
      << plots(steps) << "<h2>Configuration</h2>\n<pre>" << escaped(to_text(configuration))
      << "</pre>\n<h2>Memory of this rank</h2>\n<pre id=\"ledger\">" << escaped(ledger.to_text())
      << "</pre>\n</body></html>\n";
  return out.str();
}

}  // namespace sherd
