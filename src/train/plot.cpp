// SPDX-License-Identifier: Apache-2.0
#include "train/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <utility>

namespace sherd {
namespace {

constexpr double kPlotWidth = 560;
constexpr double kHeight = 200;
constexpr double kLeft = 64;  // for the numbers
constexpr double kBelow = 24;
constexpr double kRight = 8;
constexpr double kAbove = 8;

}  // namespace

std::string escaped_html(const std::string& text) {
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

std::string brief_number(double value) {
  std::array<char, 32> text{};
  const double size = std::abs(value);
  const bool plain = value == 0 || (size >= 1e-3 && size < 1e8);
  const char* how = size >= 1e3 ? "%.0f" : "%.4g";
  std::snprintf(text.data(), text.size(), plain ? how : "%.2e", value);
  return text.data();
}

std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, size_t most) {
  if (points.size() <= most) return points;
  std::vector<PlotPoint> result;
  const size_t stretches = most / 2;
  const auto lower = [](const PlotPoint& a, const PlotPoint& b) { return a.value < b.value; };
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / stretches);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / stretches);
    const auto [low, high] = std::minmax_element(begin, end, lower);
    result.push_back(*std::min(low, high));
    if (low != high) result.push_back(*std::max(low, high));
  }
  return result;
}

std::vector<PlotPoint> smoothed(const std::vector<PlotPoint>& points, double window) {
  const double keep = 1 - 1 / std::max(1.0, window);
  double sum = 0, weight = 0;
  std::vector<PlotPoint> result;
  for (const auto& [step, value] : points) {
    if (!std::isfinite(value)) continue;
    sum = keep * sum + value;
    weight = keep * weight + 1;
    result.push_back({step, sum / weight});
  }
  return result;
}

Plot::Plot(std::string title, std::vector<PlotLine> lines, std::vector<double> marks, Scale scale)
    : title_(std::move(title)), lines_(std::move(lines)), marks_(std::move(marks)), scale_(scale) {
  for (const auto& line : lines_) {
    for (const auto& point : line.points) {
      if (!shows(point)) continue;
      least_ = std::min(least_, point.value);
      most_ = std::max(most_, point.value);
      first_ = std::min(first_, point.step);
      last_ = std::max(last_, point.step);
    }
  }
  const bool none = least_ > most_;
  if (none) first_ = last_ = 0;
  if (none) least_ = most_ = scale == Scale::linear ? 0 : 1;
  if (least_ == most_) {
    const double more = std::max(1e-9, std::abs(most_) * 0.05);
    most_ += more;
    least_ -= more;
  }
}

bool Plot::shows(const PlotPoint& point) const {
  return std::isfinite(point.value) && (scale_ == Scale::linear || point.value > 0);
}

std::string Plot::html(const std::string& kind) const {
  std::ostringstream out;
  out << "<figure class=\"" << kind << "\"><figcaption>" << escaped_html(title_) << legend()
      << "</figcaption><svg viewBox=\"0 0 " << kPlotWidth << ' ' << kHeight
      << "\" role=\"img\" aria-label=\"" << escaped_html(title_) << "\">" << axes();
  for (const double step : marks_) {
    if (step < first_ || step > last_) continue;
    const double x = place_of(step);
    out << "<line class=\"edge\" x1=\"" << x << "\" x2=\"" << x << "\" y1=\"" << kAbove
        << "\" y2=\"" << kHeight - kBelow << "\"><title>continued at step "
        << static_cast<int64_t>(step) << "</title></line>";
  }
  for (const auto& line : lines_) out << drawn(line);
  out << "</svg></figure>\n";
  return out.str();
}

std::string Plot::axes() const {
  std::ostringstream out;
  for (int i = 0; i <= 4; ++i) {
    const double value = value_at(i / 4.0);
    const double y = height_of(value);
    out << "<line class=\"grid\" x1=\"" << kLeft << "\" x2=\"" << kPlotWidth << "\" y1=\"" << y
        << "\" y2=\"" << y << "\"/><text x=\"" << kLeft - 6 << "\" y=\"" << y + 4
        << "\" text-anchor=\"end\">" << brief_number(value) << "</text>";
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
  return out.str();
}

std::string Plot::drawn(const PlotLine& line) const {
  std::vector<std::pair<double, double>> points;
  for (const auto& point : line.points) {
    if (shows(point)) points.emplace_back(place_of(point.step), height_of(point.value));
  }
  std::ostringstream out;
  out << "<polyline" << (line.faint ? " class=\"faint\"" : "") << " style=\"stroke:" << line.colour
      << "\" points=\"";
  for (const auto& [x, y] : points) out << x << ',' << y << ' ';
  out << "\"/>";
  if (points.size() == 1) {  // of which a line shows nothing
    const auto& [x, y] = points.front();
    out << "<circle r=\"3\" style=\"fill:" << line.colour << "\" cx=\"" << x << "\" cy=\"" << y
        << "\"/>";
  }
  return out.str();
}

std::string Plot::legend() const {
  std::string text;
  for (const auto& line : lines_) {
    if (lines_.size() == 1) break;
    text += " <span" + std::string(line.faint ? " class=\"faint\"" : "") +
            " style=\"color:" + line.colour + "\">" + escaped_html(line.name) + "</span>";
  }
  return text;
}

double Plot::place_of(double step) const {
  const double width = kPlotWidth - kLeft - kRight;
  return kLeft + (last_ > first_ ? (step - first_) / (last_ - first_) * width : width / 2);
}

double Plot::height_of(double value) const {
  const double share = scale_ == Scale::linear
                           ? (value - least_) / (most_ - least_)
                           : std::log(value / least_) / std::log(most_ / least_);
  return kAbove + (1 - share) * (kHeight - kBelow - 2 * kAbove);
}

double Plot::value_at(double share) const {
  if (scale_ == Scale::linear) return least_ + (most_ - least_) * share;
  return least_ * std::pow(most_ / least_, share);
}

}  // namespace sherd
